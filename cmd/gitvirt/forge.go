package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/open"
)

// forgeFlags say which forge the repository is on, and with which account it is seen.
type forgeFlags struct {
	kind, url, repository string
	tokenFile, caFile     string
	appID                 int64
	appKeyFile            string
	// external is where people reach this controller.
	external string
}

func (f *forgeFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.kind, "forge", "", "the forge that the repository is on: gitea, forgejo, github or gitlab; its pull requests show their plans, and its commits how far they are")
	flags.StringVar(&f.url, "forge-url", "", "the forge's URL (default: found from --git)")
	flags.StringVar(&f.repository, "forge-repository", "", "the repository on the forge, OWNER/NAME (default: that of --git)")
	flags.StringVar(&f.tokenFile, "forge-token-file", "", "file with the token of the forge's account (default: --git-token-file)")
	flags.Int64Var(&f.appID, "forge-app-id", 0, "ID of a GitHub App, in place of a token")
	flags.StringVar(&f.appKeyFile, "forge-app-key-file", "", "file with the private key of the GitHub App")
	flags.StringVar(&f.caFile, "forge-ca-file", "", "PEM file with certificates that the forge is trusted by (default: --ca-file)")
	flags.StringVar(&f.external, "external-url", "", "where people reach --listen, such as https://gitvirt.example.com: pull requests link their full plans there")
}

// open returns the forge; nil when none is named.
func (f *forgeFlags) open(source *sourceFlags) (forges.Forge, error) {
	if f.kind == "" {
		if f.given() {
			return nil, errors.New("--forge names the kind of the forge, such as --forge github")
		}
		return nil, nil //nolint:nilnil // no forge is a choice, and no error
	}
	if source.config.URL == "" && (f.url == "" || f.repository == "") {
		return nil, errors.New("--forge wants a repository: give --git, or --forge-url and --forge-repository")
	}
	config := open.Config{
		Kind: f.kind, URL: f.url, Repository: f.repository, Git: source.config.URL,
		TokenFile: f.tokenFile, CAFile: f.caFile, AppID: f.appID, AppKeyFile: f.appKeyFile,
	}
	if config.CAFile == "" {
		config.CAFile = source.config.CAFile
	}
	if config.TokenFile == "" && f.appID == 0 && f.appKeyFile == "" {
		config.TokenFile = source.config.Auth.TokenFile
	}
	client, err := open.Forge(config)
	if err != nil {
		return nil, fmt.Errorf("--forge %s: %w", f.kind, err)
	}
	return client, nil
}

func (f *forgeFlags) given() bool {
	return f.url != "" || f.repository != "" || f.tokenFile != "" || f.caFile != "" || f.appID != 0 || f.appKeyFile != "" || f.external != ""
}
