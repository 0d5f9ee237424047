// Command sops encrypts a manifest with SOPS' own library, for the tests of sources/sops: sops FORMAT FILE OPTION...
// writes it to its standard output. FORMAT is yaml or json; an OPTION is age=RECIPIENT, pgp=FINGERPRINT (of the key ring
// that GNUPGHOME names), regex=REGEX for encrypted_regex, or mac-only.
//
// It is a module of its own because that library needs the SDKs of five clouds.
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/getsops/sops/v3"
	"github.com/getsops/sops/v3/aes"
	"github.com/getsops/sops/v3/age"
	"github.com/getsops/sops/v3/config"
	"github.com/getsops/sops/v3/pgp"
	"github.com/getsops/sops/v3/stores/json"
	"github.com/getsops/sops/v3/stores/yaml"
)

func main() {
	if err := encrypt(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func encrypt(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: sops FORMAT FILE OPTION")
	}
	var store sops.Store = yaml.NewStore(&config.YAMLStoreConfig{Indent: 2})
	if args[0] == "json" {
		store = json.NewStore(&config.JSONStoreConfig{Indent: -1})
	}
	content, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	branches, err := store.LoadPlainFile(content)
	if err != nil {
		return err
	}
	tree := sops.Tree{Branches: branches, Metadata: sops.Metadata{Version: "3.13.3", UnencryptedSuffix: sops.DefaultUnencryptedSuffix}}
	var group sops.KeyGroup
	for _, option := range args[2:] {
		name, value, _ := strings.Cut(option, "=")
		switch name {
		case "age":
			key, err := age.MasterKeyFromRecipient(value)
			if err != nil {
				return err
			}
			group = append(group, key)
		case "pgp":
			group = append(group, pgp.NewMasterKeyFromFingerprint(value))
		case "regex":
			tree.Metadata.UnencryptedSuffix, tree.Metadata.EncryptedRegex = "", value
		case "mac-only":
			tree.Metadata.MACOnlyEncrypted = true
		default:
			return fmt.Errorf("unknown option %q", option)
		}
	}
	tree.Metadata.KeyGroups = []sops.KeyGroup{group}
	key, errs := tree.GenerateDataKey()
	if len(errs) > 0 {
		return fmt.Errorf("encrypting the data key: %v", errs)
	}
	cipher := aes.NewCipher()
	mac, err := tree.Encrypt(key, cipher)
	if err != nil {
		return err
	}
	tree.Metadata.LastModified = time.Now().UTC()
	tree.Metadata.MessageAuthenticationCode, err = cipher.Encrypt(mac, key, tree.Metadata.LastModified.Format(time.RFC3339))
	if err != nil {
		return err
	}
	out, err := store.EmitEncryptedFile(tree)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(out)
	return err
}
