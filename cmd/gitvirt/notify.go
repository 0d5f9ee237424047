package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/pflag"

	"github.com/gitvirt/gitvirt/notify"
)

// notifyFlags say where the Fleet's receivers of notifications are reached.
type notifyFlags struct {
	urlFiles    map[string]string
	secretFiles map[string]string
}

func (f *notifyFlags) add(flags *pflag.FlagSet) {
	flags.StringToStringVar(&f.urlFiles, "notification-url-file", nil, "NAME=FILE: the file with the URL of a receiver of the Fleet's spec.notifications; may be given several times")
	flags.StringToStringVar(&f.secretFiles, "notification-secret-file", nil, "NAME=FILE: the file with the secret that messages to a receiver of kind http are signed with")
}

// endpoints joins the files of each receiver.
func (f *notifyFlags) endpoints() (notify.Endpoints, error) {
	out := notify.Endpoints{}
	for name, file := range f.urlFiles {
		if file == "" {
			return nil, fmt.Errorf("--notification-url-file %s= names no file", name)
		}
		out[name] = notify.Endpoint{URLFile: file}
	}
	for _, name := range slices.Sorted(maps.Keys(f.secretFiles)) {
		endpoint, ok := out[name]
		if !ok || f.secretFiles[name] == "" {
			return nil, fmt.Errorf("--notification-secret-file %s=%s needs a file, and --notification-url-file for %[1]s", name, f.secretFiles[name])
		}
		endpoint.SecretFile = f.secretFiles[name]
		out[name] = endpoint
	}
	return out, nil
}
