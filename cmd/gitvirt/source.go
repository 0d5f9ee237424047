package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/directory"
	"github.com/gitvirt/gitvirt/sources/git"
)

// sourceFlags say where manifests come from.
type sourceFlags struct {
	dir string
	// more are files that are read together with dir, which is then one, too.
	more []string
	// base is the folder that the names of files are relative to; empty is where we are.
	base   string
	config git.Config
	trust  trustFlags
	sops   sopsFlags
	others othersFlags
	// untrusted says what is doubtful about the signature of what was read; refused that a controller would not apply it.
	untrusted string
	refused   bool
	// stale says which of the repositories that the Fleet names could not be read now.
	stale []string
}

func (f *sourceFlags) add(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&f.dir, "dir", "", "read manifests from a directory")
	f.addGit(command)
}

func (f *sourceFlags) addGit(command *cobra.Command) {
	flags := command.Flags()
	f.sops.add(command)
	f.others.add(command)
	flags.StringVar(&f.config.URL, "git", "", "read manifests from a git repository: https, ssh, git, file URL or a local path")
	flags.StringVar(&f.config.Branch, "branch", "", "branch to follow (default: the repository's HEAD)")
	flags.StringVar(&f.config.Path, "path", "", "folder of the repository that holds the manifests")
	flags.StringVar(&f.config.Auth.Username, "git-username", "", "user name for https")
	flags.StringVar(&f.config.Auth.PasswordFile, "git-password-file", "", "file with the password for https")
	flags.StringVar(&f.config.Auth.TokenFile, "git-token-file", "", "file with an access token for https (or GITVIRT_GIT_TOKEN)")
	flags.StringVar(&f.config.Auth.SSHKeyFile, "ssh-key", "", "private key for ssh (default: the ssh agent)")
	flags.StringVar(&f.config.KnownHosts, "known-hosts", "", "known_hosts file for ssh (default: the user's and the system's)")
	flags.StringVar(&f.config.CAFile, "ca-file", "", "PEM file with certificates that https servers are trusted by")
	flags.DurationVar(&f.config.Timeout, "git-timeout", 2*time.Minute, "limit of each operation with the remote")
	flags.Int64Var(&f.config.Limits.FileBytes, "max-file-bytes", 0, "limit of one manifest file (default 1 MiB)")
	flags.IntVar(&f.config.Limits.Files, "max-files", 0, "limit of the number of manifest files (default 50000)")
}

// argument takes the source from a command's arguments: a directory, a file or a repository, or several files.
func (f *sourceFlags) argument(args []string) error {
	for _, path := range args[min(1, len(args)):] {
		for _, file := range []string{args[0], path} {
			if info, err := os.Stat(file); err != nil || info.IsDir() {
				return fmt.Errorf("several sources can only be files, and %s is none; name one directory or repository", file)
			}
		}
		f.more = append(f.more, path)
	}
	if len(args) > 0 {
		if f.dir != "" || f.config.URL != "" {
			return errors.New("name the source once: as an argument, with --dir or with --git")
		}
		if isRepository(args[0]) {
			f.config.URL = args[0]
		} else {
			f.dir = args[0]
		}
	}
	if f.dir != "" && f.config.URL != "" {
		return errors.New("--dir and --git exclude each other")
	}
	if f.dir != "" && len(f.trust.keys) > 0 {
		return errors.New("--trusted-keys are for the commits of a repository, and a directory has none; name it with --git")
	}
	if f.dir == "" && f.config.URL == "" {
		return errors.New("name a source: a directory of manifests, or --git URL")
	}
	return nil
}

// isRepository reports whether an argument names a git repository and not a directory of manifests.
func isRepository(argument string) bool {
	if strings.Contains(argument, "://") {
		return true
	}
	if _, err := os.Stat(argument); err == nil {
		return strings.HasSuffix(strings.TrimRight(argument, "/"), ".git")
	}
	at, colon := strings.Index(argument, "@"), strings.Index(argument, ":")
	return at > 0 && colon > at
}

// openGit opens the repository with its mirror below dir.
func (c *cli) openGit(f *sourceFlags, dir string, options ...git.Option) (*git.Source, error) {
	f.config.Dir = dir
	for variable, name := range map[string]*string{
		"GITVIRT_GIT_TOKEN": &f.config.Auth.TokenEnv, "GITVIRT_GIT_PASSWORD": &f.config.Auth.PasswordEnv,
		"GITVIRT_SSH_PASSPHRASE": &f.config.Auth.SSHPassphraseEnv,
	} {
		if c.getenv(variable) != "" {
			*name = variable
		}
	}
	keys, err := f.sops.read()
	if err != nil {
		return nil, err
	}
	source, err := git.Open(f.config, append(options, git.WithParse(keys.Parse), git.WithGetenv(c.getenv))...)
	if err != nil {
		return nil, fmt.Errorf("opening the repository: %w", err)
	}
	return source, nil
}

// cacheDir is where one-shot commands keep mirrors of repositories.
func (c *cli) cacheDir() string {
	if dir := c.getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "gitvirt", "git")
	}
	if home := c.getenv("HOME"); home != "" {
		return filepath.Join(home, ".cache", "gitvirt", "git")
	}
	return filepath.Join(os.TempDir(), "gitvirt-git")
}

// read returns one revision of the source, with what the repositories hold now that its Fleet names. rev is only for repositories;
// "" means the head of the branch.
func (c *cli) read(ctx context.Context, f *sourceFlags, rev string, options ...schemas.Option) (*sources.Snapshot, *schemas.Desired, error) {
	snapshot, err := c.snapshot(ctx, f, rev)
	if err == nil {
		snapshot, err = c.withOthers(ctx, f, snapshot)
	}
	if err != nil {
		return nil, nil, err
	}
	return snapshot, f.assemble(snapshot, options...), nil
}

// isFile reports whether the source is a single file.
func (f *sourceFlags) isFile() bool {
	info, err := os.Stat(f.at(f.dir))
	return f.dir != "" && err == nil && !info.IsDir()
}

func (c *cli) snapshot(ctx context.Context, f *sourceFlags, rev string) (*sources.Snapshot, error) {
	if f.dir != "" {
		return readDirectory(ctx, f, rev)
	}
	judge, err := f.trust.judge()
	if err != nil {
		return nil, err
	}
	source, err := c.openGit(f, c.cacheDir())
	if err != nil {
		return nil, err
	}
	defer func() { _ = source.Close() }()
	read := source.Poll
	if rev != "" {
		read = func(ctx context.Context) (*sources.Snapshot, error) { return source.At(ctx, rev) }
	}
	snapshot, err := read(ctx)
	if err != nil {
		return nil, err
	}
	return snapshot, f.vouch(ctx, judge, source, snapshot)
}

func readDirectory(ctx context.Context, f *sourceFlags, rev string) (*sources.Snapshot, error) {
	if rev != "" {
		return nil, errors.New("a directory has no revisions; name the repository with --git")
	}
	info, err := os.Stat(f.at(f.dir))
	if err != nil {
		var missing *fs.PathError
		if errors.As(err, &missing) {
			return nil, fmt.Errorf("reading manifests: %s: %w", f.dir, missing.Err)
		}
		return nil, fmt.Errorf("reading manifests: %w", err)
	}
	if !info.IsDir() {
		return f.readFiles()
	}
	keys, err := f.sops.read()
	if err != nil {
		return nil, err
	}
	source, err := directory.Open(f.dir, f.config.Limits, directory.WithParse(keys.Parse))
	if err != nil {
		return nil, err
	}
	return source.Poll(ctx)
}

// at is where a file or folder lies.
func (f *sourceFlags) at(name string) string {
	if f.base == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(f.base, name)
}

// files are the names of a source that is single files.
func (f *sourceFlags) files() []string { return append([]string{f.dir}, f.more...) }

// readFiles reads single files of manifests.
func (f *sourceFlags) readFiles() (*sources.Snapshot, error) {
	keys, err := f.sops.read()
	if err != nil {
		return nil, err
	}
	snapshot := &sources.Snapshot{Revision: filepath.Base(f.dir)}
	for _, name := range f.files() {
		content, err := f.readFile(name)
		if err != nil {
			return nil, err
		}
		snapshot.Files = append(snapshot.Files, keys.Parse(name, content))
	}
	return snapshot, nil
}

func (f *sourceFlags) readFile(name string) ([]byte, error) {
	info, err := os.Stat(f.at(name))
	if err != nil {
		return nil, fmt.Errorf("reading manifests: %w", err)
	}
	if limit := f.config.Limits.WithDefaults().FileBytes; info.Size() > limit {
		return nil, fmt.Errorf("reading manifests: %s has %d bytes, more than the limit of %d; raise --max-file-bytes", name, info.Size(), limit)
	}
	content, err := os.ReadFile(f.at(name))
	if err != nil {
		return nil, fmt.Errorf("reading manifests: %w", err)
	}
	return content, nil
}

// tell writes the diagnostics and reports whether there are errors among them.
func (c *cli) tell(diagnostics schemas.Diagnostics) bool {
	for _, diagnostic := range diagnostics {
		fmt.Fprintln(c.stderr, diagnostic.Error())
	}
	return diagnostics.Errors() > 0
}
