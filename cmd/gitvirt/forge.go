package main

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/github"
)

// forgeFlags say which forge the repository is on, and with which account it is seen.
type forgeFlags struct {
	kind, url, repository string
	tokenFile, caFile     string
	appID                 int64
	appKeyFile            string
}

func (f *forgeFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.kind, "forge", "", "the forge that the repository is on, which is told of each revision: "+strings.Join(forgeKinds, ", "))
	flags.StringVar(&f.url, "forge-url", "", "the forge's URL (default: https and the host of --git)")
	flags.StringVar(&f.repository, "forge-repository", "", "the repository on the forge, OWNER/NAME (default: that of --git)")
	flags.StringVar(&f.tokenFile, "forge-token-file", "", "file with the token of the forge's account (default: --git-token-file)")
	flags.Int64Var(&f.appID, "forge-app-id", 0, "ID of a GitHub App, in place of a token")
	flags.StringVar(&f.appKeyFile, "forge-app-key-file", "", "file with the private key of the GitHub App")
	flags.StringVar(&f.caFile, "forge-ca-file", "", "PEM file with certificates that the forge is trusted by (default: --ca-file)")
}

// forgeKinds are those that can be named.
var forgeKinds = []string{"github"} //nolint:gochecknoglobals // a constant

// unsupportedForges are known by name, so that nobody looks for the mistake elsewhere.
var unsupportedForges = []string{"bitbucket", "azure", "azuredevops", "gogs", "codecommit"} //nolint:gochecknoglobals // a constant

// open returns the forge; nil when none is named.
func (f *forgeFlags) open(source *sourceFlags) (forges.Forge, error) {
	if f.kind == "" {
		if f.given() {
			return nil, errors.New("--forge names the kind of the forge, such as --forge github")
		}
		return nil, nil //nolint:nilnil // no forge is a choice, and no error
	}
	switch {
	case slices.Contains(unsupportedForges, strings.ToLower(f.kind)):
		return nil, fmt.Errorf("--forge %s: gitvirt does not speak to it; it speaks to %s, and follows the repository without --forge", f.kind, strings.Join(forgeKinds, ", "))
	case !slices.Contains(forgeKinds, f.kind):
		return nil, fmt.Errorf("--forge %s: want one of %s", f.kind, strings.Join(forgeKinds, ", "))
	case source.config.URL == "" && (f.url == "" || f.repository == ""):
		return nil, errors.New("--forge wants a repository: give --git, or --forge-url and --forge-repository")
	}
	base, repository, err := f.place(source.config.URL)
	if err != nil {
		return nil, err
	}
	ca, token := f.caFile, f.tokenFile
	if ca == "" {
		ca = source.config.CAFile
	}
	if token == "" && f.appID == 0 {
		token = source.config.Auth.TokenFile
	}
	owner, name, _ := strings.Cut(repository, "/")
	config := github.Config{URL: base, Owner: owner, Repository: name, TokenFile: token, CAFile: ca}
	if f.appID != 0 || f.appKeyFile != "" {
		config.App = &github.App{ID: f.appID, PrivateKeyFile: f.appKeyFile}
	}
	client, err := github.New(config)
	if err != nil {
		return nil, fmt.Errorf("--forge %s: %w", f.kind, err)
	}
	return client, nil
}

func (f *forgeFlags) given() bool {
	return f.url != "" || f.repository != "" || f.tokenFile != "" || f.caFile != "" || f.appID != 0 || f.appKeyFile != ""
}

// place finds where the repository is on the forge: what the flags do not say is what git's address says.
func (f *forgeFlags) place(remote string) (base, repository string, err error) {
	base, repository = f.url, f.repository
	if base != "" && repository != "" {
		return base, repository, nil
	}
	host, path, err := splitRemote(remote)
	if err != nil {
		return "", "", err
	}
	parts := strings.Split(strings.Trim(strings.TrimSuffix(strings.TrimSuffix(path, "/"), ".git"), "/"), "/")
	if len(parts) < 2 {
		return "", "", fmt.Errorf("--git %s names no OWNER/NAME; give --forge-repository", path)
	}
	if repository == "" {
		repository = strings.Join(parts[len(parts)-2:], "/")
	}
	if base == "" {
		base = strings.TrimSuffix("https://"+host+"/"+strings.Join(parts[:len(parts)-2], "/"), "/")
	}
	return base, repository, nil
}

// splitRemote takes git's address apart; without credentials and the port of ssh.
func splitRemote(remote string) (host, path string, err error) {
	if before, after, ok := strings.Cut(remote, ":"); ok && !strings.Contains(remote, "://") { // user@host:path
		return before[strings.LastIndexByte(before, '@')+1:], after, nil
	}
	address, err := url.Parse(remote)
	if err != nil || address.Host == "" {
		return "", "", errors.New("--git is no address on a forge; give --forge-url and --forge-repository")
	}
	if address.Scheme == "https" || address.Scheme == "http" {
		return address.Host, address.Path, nil
	}
	return address.Hostname(), address.Path, nil
}
