package previews_test

import "github.com/gitvirt/gitvirt/schemas"

func vm(name string) schemas.Address {
	return schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: name}
}
