package several

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/schemas/signers"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/sops"
	"github.com/gitvirt/gitvirt/sources/trust"
)

// Git opens the git repositories that a Fleet names, with credentials from a folder that has a folder for each source. The
// Fleet says neither credentials nor where they are: whoever may push to it reads nothing of this machine by it.
type Git struct {
	// Dir is where mirrors live, those of each source in a folder of its name.
	Dir string
	// Credentials is the folder with a folder for each source (see the constants), or with files SOURCE.FILE, which is all that a
	// Secret of Kubernetes can have; empty is none.
	Credentials string
	// Local lets a Fleet name repositories on the disk of this machine.
	Local bool
	// Signers count for every source besides those that the Fleet names for it; with any all commits have to be signed.
	Signers *signers.Set
	// Limits bound each revision, Timeout each operation with a remote; zero means the defaults.
	Limits  sources.Limits
	Timeout time.Duration
	// Now is for signatures; nil means time.Now.
	Now func() time.Time
}

// The files of a source in Git.Credentials. All are optional. A source has no dot in its name.
const (
	TokenFile      = "token"    // access token of a forge, for https
	UsernameFile   = "username" // for https; "git" with a token when it is missing
	PasswordFile   = "password" // for https
	SSHKeyFile     = "ssh-key"
	PassphraseFile = "ssh-passphrase" // of ssh-key
	KnownHostsFile = "known_hosts"    // in place of those of the user and the system
	CAFile         = "ca.pem"         // certificates that https servers are trusted by, besides the system's
	URLFile        = "url"            // the credentials are for URLs that begin with this alone
	AgeKeysFile    = "age-keys.txt"   // keys that decrypt manifests encrypted with SOPS
	PGPKeysFile    = "pgp-keys.asc"   // the same, of PGP
)

// opened are the files that are read when a repository is opened; the others are read each time that they are used.
var opened = []string{UsernameFile, CAFile, URLFile, AgeKeysFile, PGPKeysFile}

// The most that one fetch of a source may transfer, and that its machines may take in memory: a small file can ask for many.
const (
	fetchBytes   = 512 << 20
	machineBytes = 64 << 20
)

// State implements Opener: which credentials there are, and when those changed that are read by Open.
func (g *Git) State(source *schemas.FleetSource) string {
	if g.Credentials == "" {
		return ""
	}
	var b strings.Builder
	for _, name := range []string{TokenFile, PasswordFile, SSHKeyFile, PassphraseFile, KnownHostsFile} {
		if g.credential(source, name) != "" {
			b.WriteString(name + "\n")
		}
	}
	for _, name := range opened {
		if info, err := os.Stat(g.credential(source, name)); err == nil {
			fmt.Fprintf(&b, "%s %d %s\n", name, info.Size(), info.ModTime())
		}
	}
	return b.String()
}

// credential is the path of a file of a source's credentials; empty when there is none.
func (g *Git) credential(source *schemas.FleetSource, name string) string {
	if g.Credentials == "" {
		return ""
	}
	for _, place := range []string{filepath.Join(source.Name, name), source.Name + "." + name} {
		file := filepath.Join(g.Credentials, place)
		if info, err := os.Stat(file); err != nil && errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() {
			continue
		}
		return file // one that cannot be looked at is told when it is read
	}
	return ""
}

// line reads a file of a source's credentials that has one line; empty when there is none.
func (g *Git) line(source *schemas.FleetSource, name string) (string, error) {
	file := g.credential(source, name)
	if file == "" {
		return "", nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("reading the credentials: %w", err)
	}
	return strings.TrimSpace(string(content)), nil
}

// Open implements Opener.
func (g *Git) Open(source *schemas.FleetSource) (Repository, error) {
	if filepath.Base(source.Name) != source.Name || source.Name == "." || source.Name == ".." {
		return nil, fmt.Errorf("%q cannot be the name of a source", source.Name) // it names folders
	}
	if err := g.reachable(source.Git.URL); err != nil {
		return nil, err
	}
	config := git.Config{
		URL: source.Git.URL, Branch: source.Git.Branch, Path: source.Git.Path,
		Dir: filepath.Join(g.Dir, source.Name), Limits: g.Limits, Timeout: g.Timeout, FetchBytes: fetchBytes, Source: source.Name,
	}
	config.Limits.Bytes = machineBytes
	if err := g.authorize(source, &config); err != nil {
		return nil, err
	}
	keys, err := g.decrypters(source)
	if err != nil {
		return nil, err
	}
	options := []git.Option{
		git.WithParse(func(path string, content []byte) *schemas.File { return keys.ParseFrom(source.Name, path, content) }),
		// Variables of the controller are its own: its ssh agent speaks for no source.
		git.WithGetenv(func(string) string { return "" }),
	}
	judge, err := g.judge(source)
	if err != nil {
		return nil, err
	}
	if judge != nil {
		options = append(options, git.WithTrust(judge))
	}
	return git.Open(config, options...)
}

// reachable refuses what a Fleet must not name.
func (g *Git) reachable(raw string) error {
	if git.IsLocal(raw) && !g.Local {
		return &sources.Error{
			Kind: sources.ErrAuth, Op: "opening " + git.Redact(raw), Err: errors.New("a Fleet may not name a repository on the disk of the machine that gitvirt runs on"),
			Fix: "name it by an https or ssh URL, or start gitvirt with --source-local",
		}
	}
	if u, err := url.Parse(raw); err == nil && u.User != nil {
		if _, has := u.User.Password(); has {
			return &sources.Error{
				Kind: sources.ErrAuth, Op: "opening " + git.Redact(raw), Err: errors.New("the URL has a password in it"),
				Fix: "take it out, make it invalid where it is from, and put a new one into the folder of --source-credentials",
			}
		}
	}
	return nil
}

// authorize adds the credentials of a source.
func (g *Git) authorize(source *schemas.FleetSource, config *git.Config) error {
	prefix, err := g.line(source, URLFile)
	if err != nil {
		return err
	}
	config.CAFile, config.KnownHosts = g.credential(source, CAFile), g.credential(source, KnownHostsFile)
	if !within(source.Git.URL, prefix) {
		return &sources.Error{
			Kind: sources.ErrAuth, Op: "opening " + git.Redact(source.Git.URL), Err: fmt.Errorf("its credentials are for %s", git.Redact(prefix)),
			Fix: "have the file url beside them changed if the Fleet is right",
		}
	}
	username, err := g.line(source, UsernameFile)
	if err != nil {
		return err
	}
	config.Auth = git.Auth{
		Username: username, TokenFile: g.credential(source, TokenFile), PasswordFile: g.credential(source, PasswordFile),
		SSHKeyFile: g.credential(source, SSHKeyFile), SSHPassphraseFile: g.credential(source, PassphraseFile),
	}
	return nil
}

// within reports whether a URL is a prefix or continues it at a boundary: another host may begin like it.
func within(raw, prefix string) bool {
	rest, found := strings.CutPrefix(raw, prefix)
	return found && (rest == "" || prefix == "" || strings.ContainsAny(prefix[len(prefix)-1:], "/:") || rest[0] == '/')
}

// decrypters are the keys that decrypt a source's files: its own alone. With those of the controller a tenant could have files
// of others decrypted, by copying them.
func (g *Git) decrypters(source *schemas.FleetSource) (*sops.Keys, error) {
	var age, pgp []string
	if file := g.credential(source, AgeKeysFile); file != "" {
		age = append(age, file)
	}
	if file := g.credential(source, PGPKeysFile); file != "" {
		pgp = append(pgp, file)
	}
	return sops.ReadKeys(age, pgp)
}

// judge says whose commits count; nil takes all.
func (g *Git) judge(source *schemas.FleetSource) (*trust.Judge, error) {
	anchor := trust.Anchor{Signers: signers.Join(g.Signers)}
	if wanted := source.Trust; wanted != nil {
		anchor.Signers, anchor.All = signers.Join(g.Signers, wanted.Signers()), wanted.Signatures == schemas.SignaturesAll
		if anchor.Signers.Len() == 0 || wanted.Doubt {
			return nil, &sources.Error{
				Kind: sources.ErrUntrusted, Op: "opening " + git.Redact(source.Git.URL), Err: errors.New("the Fleet wants its commits signed (spec.sources.trust) and names no key that can be read"),
				Fix: "name the keys of those whose signatures count",
			}
		}
	}
	if anchor.Signers.Len() == 0 {
		return nil, nil //nolint:nilnil // nobody wants signatures
	}
	now := g.Now
	if now == nil {
		now = time.Now
	}
	return trust.New(anchor, now), nil
}
