package main

import (
	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/sources/sops"
)

// sopsFlags name the keys that decrypt manifests.
type sopsFlags struct {
	age, pgp []string
	keys     *sops.Keys
}

func (f *sopsFlags) add(command *cobra.Command) {
	flags := command.Flags()
	flags.StringArrayVar(&f.age, "sops-age-key-file", nil, "file with age keys that decrypt manifests encrypted with SOPS (may be repeated)")
	flags.StringArrayVar(&f.pgp, "sops-pgp-key-file", nil, "file with armored PGP private keys, without a passphrase, that do the same (may be repeated)")
}

// read reads the keys, once.
func (f *sopsFlags) read() (*sops.Keys, error) {
	if f.keys == nil {
		keys, err := sops.ReadKeys(f.age, f.pgp)
		if err != nil {
			return nil, err
		}
		f.keys = keys
	}
	return f.keys, nil
}
