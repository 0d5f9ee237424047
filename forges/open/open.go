// Package open picks the client of a forge by its kind, and finds out where the forge is from where git is. It is what programs import; the
// clients are behind it.
package open

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/gitea"
	"github.com/gitvirt/gitvirt/forges/github"
	"github.com/gitvirt/gitvirt/forges/gitlab"
)

// The kinds of forges that there are clients for.
const (
	Gitea   = "gitea"
	Forgejo = "forgejo"
	GitHub  = "github"
	GitLab  = "gitlab"
)

// Config says which forge, where, and who asks.
type Config struct {
	// Kind is one of the constants.
	Kind string
	// URL is the forge's; empty means that Git tells.
	URL string
	// Repository is "owner/name", on GitLab with all groups; empty means that Git tells.
	Repository string
	// Git is the repository's URL for git, which URL and Repository are found from where they are empty.
	Git string
	// TokenFile holds the token of an account.
	TokenFile string
	// AppID and AppKeyFile are a GitHub App's, in place of TokenFile.
	AppID      int64
	AppKeyFile string
	// CAFile holds PEM certificates that the server is trusted by besides the system's; may be empty.
	CAFile string
	// Clock is the system's when nil.
	Clock backoff.Clock
}

// Forge returns the client. It makes no request.
func Forge(config Config) (forges.Forge, error) {
	kind := strings.ToLower(config.Kind)
	if err := Supported(kind); err != nil {
		return nil, err
	}
	app := config.AppID != 0 || config.AppKeyFile != ""
	if app && kind != GitHub {
		return nil, fmt.Errorf("a GitHub App is for GitHub, and the forge is a %s; want a token file", kind)
	}
	base, repository, err := where(kind, config)
	if err != nil {
		return nil, err
	}
	if kind == GitLab {
		return opened(gitlab.New(gitlab.Config{URL: base, Project: repository, TokenFile: config.TokenFile, CAFile: config.CAFile, Clock: config.Clock}))
	}
	owner, name, ok := strings.Cut(repository, "/")
	if !ok || strings.Contains(name, "/") {
		return nil, fmt.Errorf("the repository is %q; want OWNER/NAME", repository)
	}
	if kind == GitHub {
		c := github.Config{URL: base, Owner: owner, Repository: name, TokenFile: config.TokenFile, CAFile: config.CAFile, Clock: config.Clock}
		if app {
			c.App = &github.App{ID: config.AppID, PrivateKeyFile: config.AppKeyFile}
		}
		return opened(github.New(c))
	}
	return opened(gitea.New(gitea.Config{URL: base, Owner: owner, Repository: name, TokenFile: config.TokenFile, CAFile: config.CAFile, Clock: config.Clock}))
}

// opened keeps a nil pointer from becoming a Forge that is not nil.
func opened[F forges.Forge](f F, err error) (forges.Forge, error) {
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Supported returns an error for a kind of forge that there is no client for, which says what to do instead.
func Supported(kind string) error {
	switch kind {
	case Gitea, Forgejo, GitHub, GitLab:
		return nil
	case "bitbucket", "azuredevops":
		product := map[string]string{"bitbucket": "Bitbucket", "azuredevops": "Azure DevOps"}[kind]
		return fmt.Errorf("%s is not supported as a forge; leave the forge out, and let a pipeline of it run `gitvirt plan --from BASE --to HEAD`, which needs git alone", product)
	}
	return fmt.Errorf("the kind of forge is %q; want gitea, forgejo, github or gitlab", kind)
}

// where returns the forge's URL and the repository's name on it.
func where(kind string, config Config) (base, repository string, err error) {
	base, repository = config.URL, strings.Trim(config.Repository, "/")
	if base != "" && repository != "" {
		return base, repository, nil
	}
	if config.Git == "" {
		return "", "", errors.New("want the forge's URL and the repository, or the repository's URL for git")
	}
	if base == "" {
		foundBase, foundRepository, err := FromGit(kind, config.Git)
		if err != nil {
			return "", "", err
		}
		if repository == "" {
			repository = foundRepository
		}
		return foundBase, repository, nil
	}
	// The forge may be below a path, which is a part of git's URL then.
	parsed, err := parseGit(config.Git)
	if err != nil {
		return "", "", err
	}
	if forge, err := url.Parse(base); err == nil && parsed.web {
		parsed.path = strings.TrimPrefix(parsed.path, strings.Trim(forge.Path, "/")+"/")
	}
	return base, parsed.path, nil
}

// FromGit finds a forge's URL and the repository's name on it from the repository's URL for git: https, ssh, or user@host:path. A forge with
// a path or a port of its own can be told from an https URL only, and GitLab's path from none, since its repositories have paths as well.
func FromGit(kind, gitURL string) (base, repository string, err error) {
	parsed, err := parseGit(gitURL)
	if err != nil {
		return "", "", err
	}
	segments := strings.Split(parsed.path, "/")
	if len(segments) < 2 {
		return "", "", fmt.Errorf("git's URL names the repository %q, which has no owner; name the forge's URL and the repository", parsed.path)
	}
	base, repository = parsed.root, parsed.path
	if kind == GitLab {
		return base, repository, nil
	}
	below := segments[:len(segments)-2]
	if len(below) > 0 {
		base += "/" + strings.Join(below, "/")
	}
	return base, strings.Join(segments[len(segments)-2:], "/"), nil
}

// gitURL is a repository's, without who asks.
type gitURL struct {
	// root is the server's address in the web.
	root string
	// path is the repository's, without slashes around it and without ".git".
	path string
	// web says that path is the one in the web as well.
	web bool
}

var scp = regexp.MustCompile(`^(?:[^@/:\s]+@)?(\[[0-9A-Fa-f:]+\]|[^@/:\s]+):([^\s]+)$`)

// sshHosts are hosts for ssh over port 443 whose forges have other names.
var sshHosts = map[string]string{"ssh.github.com": "github.com", "altssh.gitlab.com": "gitlab.com"}

func parseGit(text string) (gitURL, error) {
	unreadable := errors.New("the forge cannot be told from the repository's URL for git; name the forge's URL and the repository")
	if !strings.Contains(text, "://") {
		match := scp.FindStringSubmatch(text)
		if match == nil {
			return gitURL{}, unreadable
		}
		return gitURL{root: "https://" + forgeHost(match[1]), path: clean(match[2])}, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return gitURL{}, unreadable
	}
	switch u.Scheme {
	case "https", "http":
		return gitURL{root: u.Scheme + "://" + u.Host, path: clean(u.Path), web: true}, nil
	case "ssh", "git+ssh", "ssh+git":
		host := u.Hostname()
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		return gitURL{root: "https://" + forgeHost(host), path: clean(u.Path)}, nil
	}
	return gitURL{}, unreadable
}

func forgeHost(host string) string {
	if other, ok := sshHosts[strings.ToLower(host)]; ok {
		return other
	}
	return host
}

func clean(text string) string {
	return strings.TrimSuffix(strings.Trim(path.Clean("/"+text), "/"), ".git")
}
