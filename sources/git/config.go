package git

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/transport"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/trust"
)

// Config says where a repository is and how to reach it.
type Config struct {
	// URL is https://, http://, ssh://, git:// or file://, user@host:path, or a local path to a repository with or
	// without a work tree. It may name a user; a password in it works but belongs into Auth.
	URL string
	// Branch to follow, without "refs/heads/"; empty means the remote's HEAD.
	Branch string
	// Path is the sub-path that holds the manifests, with forward slashes; empty means all of the repository.
	Path string
	// Auth are the credentials; none is needed for public and for local repositories.
	Auth Auth
	// KnownHosts is the known_hosts file that ssh host keys are checked against; empty means ~/.ssh/known_hosts and
	// /etc/ssh/ssh_known_hosts. There is no way to leave the check out.
	KnownHosts string
	// CAFile holds PEM certificates that https servers are trusted by, besides the system's.
	CAFile string
	// Timeout bounds each operation with the remote, the transfer included; 0 means two minutes.
	Timeout time.Duration
	// Dir is the folder in which mirrors live, each in a folder of its own; it is made when it is missing. Two
	// processes may share it.
	Dir string
	// FetchBytes is the most that one fetch may transfer, in bytes; 0 means 2 GiB.
	FetchBytes int64
	// Limits bound what one revision may hold; zero fields mean sources.DefaultLimits.
	Limits sources.Limits
	// Source is what a Fleet calls the repository; empty for the one that the Fleet is in. WithParse has to set the same.
	Source string
}

// Auth names where credentials are found, never the credentials themselves. Files are read at each use; one trailing
// newline is not part of the secret. When both a file and a variable are named, the file counts.
type Auth struct {
	// Username is for passwords and tokens. For ssh it is the remote user ("git" when it is in neither place). With
	// a token it may stay empty: "git" is sent, which GitHub, GitLab and Gitea accept.
	Username string
	// PasswordFile and PasswordEnv name the password of https basic authentication.
	PasswordFile, PasswordEnv string
	// TokenFile and TokenEnv name an access token of a forge; it is sent as the password.
	TokenFile, TokenEnv string
	// SSHKeyFile is a private key. Without one the agent at SSH_AUTH_SOCK is asked.
	SSHKeyFile string
	// SSHPassphraseFile and SSHPassphraseEnv name the passphrase of the private key, if it has one.
	SSHPassphraseFile, SSHPassphraseEnv string
}

// ParseFunc reads one manifest; schemas.Parse is the one to use.
type ParseFunc func(path string, content []byte) *schemas.File

// Option adjusts a Source or a Publisher.
type Option func(*options)

type options struct {
	parse  ParseFunc
	getenv func(string) string
	now    func() time.Time
	judge  *trust.Judge
}

// WithParse replaces schemas.Parse.
func WithParse(parse ParseFunc) Option { return func(o *options) { o.parse = parse } }

// WithGetenv replaces os.Getenv, for credentials that come from the environment.
func WithGetenv(getenv func(string) string) Option { return func(o *options) { o.getenv = getenv } }

// WithNow replaces time.Now, for the times of status commits and for what is looked at again later.
func WithNow(now func() time.Time) Option { return func(o *options) { o.now = now } }

func newOptions(opts []Option) options {
	o := options{parse: schemas.Parse, getenv: os.Getenv, now: time.Now}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

const (
	defaultTimeout    = 2 * time.Minute
	defaultFetchBytes = 2 << 30
)

// endpoint is a checked Config.
type endpoint struct {
	remote  *transport.Endpoint // may hold a password: never printed
	cfg     Config
	getenv  func(string) string
	display string // the URL without credentials
}

// newEndpoint checks cfg and fills in its defaults.
func newEndpoint(cfg Config, getenv func(string) string) (*endpoint, error) {
	if cfg.URL == "" {
		return nil, errors.New("no URL of a git repository is given")
	}
	if cfg.Dir == "" {
		return nil, errors.New("no directory for the git mirror is given")
	}
	display := Redact(cfg.URL)
	ep, err := transport.NewEndpoint(cfg.URL)
	if err != nil {
		// The error of a malformed URL quotes the URL.
		return nil, fmt.Errorf("%q is not the URL of a git repository", display)
	}
	switch ep.Protocol {
	case "https", "http", "ssh", "git", "file":
	default:
		return nil, fmt.Errorf("%s: scheme %q is not supported; use https, http, ssh, git, file or a local path", display, ep.Protocol)
	}
	if ep.Protocol != "file" && ep.Host == "" {
		return nil, fmt.Errorf("%s: the URL names no host", display)
	}
	if ep.Protocol == "file" {
		display = ep.Path // absolute, so that it names the same mirror wherever we are started
	}
	if cfg.Path, err = cleanSubPath(cfg.Path); err != nil {
		return nil, err
	}
	cfg.Branch = strings.TrimPrefix(cfg.Branch, "refs/heads/")
	if strings.ContainsAny(cfg.Branch, " \t\n~^:?*[\\\x00") || strings.HasPrefix(cfg.Branch, "-") || strings.Contains(cfg.Branch, "..") {
		return nil, fmt.Errorf("%q is not the name of a branch", cfg.Branch)
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.FetchBytes <= 0 {
		cfg.FetchBytes = defaultFetchBytes
	}
	cfg.Limits = cfg.Limits.WithDefaults()
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, err
	}
	return &endpoint{remote: ep, cfg: cfg, getenv: getenv, display: display}, nil
}

// cleanSubPath returns p without "." and slashes at its ends; a path that leaves the repository is an error.
func cleanSubPath(p string) (string, error) {
	clean := strings.TrimPrefix(path.Clean("/"+filepath.ToSlash(p)), "/")
	for _, part := range strings.Split(filepath.ToSlash(p), "/") {
		if part == ".." {
			return "", fmt.Errorf("sub-path %q leaves the repository", p)
		}
	}
	return clean, nil
}

// IsLocal reports whether a URL names a repository on the disk of this machine.
func IsLocal(raw string) bool {
	ep, err := transport.NewEndpoint(raw)
	return err == nil && ep.Protocol == "file"
}

// Redact returns a repository's URL without user and password, for messages. What cannot be understood loses
// everything before the last "@".
func Redact(raw string) string {
	if !strings.Contains(raw, "://") {
		// user@host:path has no password, and a local path has neither.
		return raw
	}
	if u, err := url.Parse(raw); err == nil {
		if u.User == nil {
			return raw
		}
		if u.Scheme == "ssh" {
			u.User = url.User(u.User.Username())
		} else {
			u.User = nil
		}
		return u.String()
	}
	scheme, rest, _ := strings.Cut(raw, "://")
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		rest = rest[at+1:]
	}
	return scheme + "://" + rest
}

// secret returns the content of file, or else the variable env; "" when neither is named.
func (e *endpoint) secret(file, env string) (string, error) {
	if file != "" {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		return strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r"), nil
	}
	if env == "" {
		return "", nil
	}
	value := e.getenv(env)
	if value == "" {
		return "", fmt.Errorf("the environment variable %s is empty", env)
	}
	return value, nil
}
