package schemas

import (
	"crypto/sha256"
	"fmt"

	"github.com/google/uuid"
)

// firmwareNamespace is the UUID under which gitvirt derives others (RFC 9562, version 5). It must never change.
const firmwareNamespace = "0b1f7e3e-6d0c-5c55-9d43-7a6c1d1f2b90"

// FirmwareUUID is the UUID of a machine whose manifest names none: always the same for the same namespace and name.
// It does not depend on the kind, so a VirtualMachineInstance that becomes a VirtualMachine keeps it.
func FirmwareUUID(a Address) string {
	return uuid.NewSHA1(uuid.MustParse(firmwareNamespace), []byte(a.Namespace+"/"+a.Name)).String()
}

// MACAddress is the MAC address of an interface whose manifest names none: always the same for the same namespace,
// name and interface. It is locally administered and unicast (02:...).
func MACAddress(a Address, interfaceName string) string {
	sum := sha256.Sum256([]byte("mac\x00" + a.Namespace + "/" + a.Name + "\x00" + interfaceName))
	return fmt.Sprintf("02:%02x:%02x:%02x:%02x:%02x", sum[0], sum[1], sum[2], sum[3], sum[4])
}
