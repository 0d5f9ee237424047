package git

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"
)

// dialSSH runs the service on an ssh server. The host key is always checked.
func (c *connector) dialSSH(ctx context.Context, service string) (pipe, error) {
	port := c.remote.Port
	if port == 0 {
		port = gitssh.DefaultPort
	}
	address := net.JoinHostPort(strings.Trim(c.remote.Host, "[]"), strconv.Itoa(port))
	config, release, err := c.sshConfig(address)
	if err != nil {
		return pipe{}, err
	}
	defer release()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return pipe{}, err
	}
	kill := func() { _ = conn.Close() }
	stop := context.AfterFunc(ctx, kill)
	defer stop()
	transport, channels, requests, err := ssh.NewClientConn(conn, address, config)
	if err != nil {
		kill()
		return pipe{}, sshError(err)
	}
	client := ssh.NewClient(transport, channels, requests)
	p, err := startSSH(client, service+" "+shellQuote(c.remote.Path))
	if err != nil {
		_ = client.Close()
		return pipe{}, err
	}
	p.kill = kill
	return p, nil
}

func startSSH(client *ssh.Client, command string) (pipe, error) {
	session, err := client.NewSession()
	if err != nil {
		return pipe{}, err
	}
	stderr := &tail{}
	session.Stderr = stderr
	stdin, err := session.StdinPipe()
	if err != nil {
		return pipe{}, err
	}
	stdout, err := session.StdoutPipe()
	if err != nil {
		return pipe{}, err
	}
	if err := session.Start(command); err != nil {
		return pipe{}, err
	}
	wait := func() string {
		_ = session.Close() // the far side may have closed first
		_ = session.Wait()  // what went wrong is in stderr
		_ = client.Close()
		_ = client.Wait()
		return stderr.String()
	}
	return pipe{stdin: stdin, stdout: stdout, wait: wait}, nil
}

// sshConfig reads the key and the known hosts. release is called after the handshake.
func (c *connector) sshConfig(address string) (config *ssh.ClientConfig, release func(), err error) {
	user := c.cfg.Auth.Username
	if user == "" {
		user = c.remote.User
	}
	if user == "" {
		user = "git"
	}
	files, err := c.knownHosts()
	if err != nil {
		return nil, nil, err
	}
	db, err := gitssh.NewKnownHostsDb(files...)
	if err != nil {
		return nil, nil, &accessError{fmt.Errorf("reading the known hosts: %w", err), "mend the file; each line is a host, a key type and a key"}
	}
	method, release, err := c.sshAuth()
	if err != nil {
		return nil, nil, err
	}
	return &ssh.ClientConfig{
		User:              user,
		Auth:              []ssh.AuthMethod{method},
		HostKeyCallback:   explainHostKey(db.HostKeyCallback(), address, files),
		HostKeyAlgorithms: db.HostKeyAlgorithms(address),
	}, release, nil
}

// knownHosts returns the known_hosts files there are, at least one.
func (c *connector) knownHosts() ([]string, error) {
	candidates := []string{c.cfg.KnownHosts}
	if c.cfg.KnownHosts == "" {
		candidates = []string{"/etc/ssh/ssh_known_hosts"}
		if home, err := os.UserHomeDir(); err == nil {
			candidates = []string{filepath.Join(home, ".ssh", "known_hosts"), "/etc/ssh/ssh_known_hosts"}
		}
	}
	var files []string
	for _, f := range candidates {
		if _, err := os.Stat(f); err == nil {
			files = append(files, f)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, &accessError{fmt.Errorf("reading the known hosts: %w", err), "make the file readable to gitvirt"}
		}
	}
	if len(files) == 0 {
		return nil, &accessError{
			fmt.Errorf("there is no known_hosts file to check the host key of %s against (looked for %s)", c.remote.Host, strings.Join(candidates, ", ")),
			"add the server's host key: " + keyscan(net.JoinHostPort(strings.Trim(c.remote.Host, "[]"), strconv.Itoa(max(c.remote.Port, 0))), candidates[0]),
		}
	}
	return files, nil
}

// explainHostKey turns a refused host key into an error that says what to do.
func explainHostKey(check ssh.HostKeyCallback, address string, files []string) ssh.HostKeyCallback {
	return func(host string, remote net.Addr, key ssh.PublicKey) error {
		err := check(host, remote, key)
		var keyErr *knownhosts.KeyError
		if err == nil || !errors.As(err, &keyErr) {
			return err
		}
		print := ssh.FingerprintSHA256(key)
		if len(keyErr.Want) == 0 {
			return &accessError{
				fmt.Errorf("the host key of %s (%s %s) is in none of %s", address, key.Type(), print, strings.Join(files, ", ")),
				"compare the fingerprint with what the server's owner publishes, then add the key: " + keyscan(address, files[0]),
			}
		}
		return &accessError{
			fmt.Errorf("THE HOST KEY OF %s HAS CHANGED: it shows %s %s, and %s:%d has another; this may be an attack",
				address, key.Type(), print, keyErr.Want[0].Filename, keyErr.Want[0].Line),
			"ask the server's owner; if the change is right, replace that line: " + keyscan(address, keyErr.Want[0].Filename),
		}
	}
}

func keyscan(address, file string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "0" || port == "22" {
		return fmt.Sprintf("ssh-keyscan %s >> %s", host, file)
	}
	return fmt.Sprintf("ssh-keyscan -p %s %s >> %s", port, host, file)
}

// sshAuth returns the private key, or else what the ssh agent holds.
func (c *connector) sshAuth() (ssh.AuthMethod, func(), error) {
	auth := c.cfg.Auth
	if auth.SSHKeyFile == "" {
		return c.sshAgent()
	}
	pem, err := os.ReadFile(auth.SSHKeyFile)
	if err != nil {
		return nil, nil, &accessError{fmt.Errorf("reading the ssh key: %w", err), "make the key readable to gitvirt"}
	}
	signer, err := ssh.ParsePrivateKey(pem)
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		passphrase, secretErr := c.secret(auth.SSHPassphraseFile, auth.SSHPassphraseEnv)
		if secretErr != nil || passphrase == "" {
			return nil, nil, &accessError{
				errors.Join(fmt.Errorf("the ssh key %s needs a passphrase", auth.SSHKeyFile), secretErr),
				"name the file or variable that holds it",
			}
		}
		signer, err = ssh.ParsePrivateKeyWithPassphrase(pem, []byte(passphrase))
	}
	if err != nil {
		return nil, nil, &accessError{fmt.Errorf("reading the ssh key %s: %w", auth.SSHKeyFile, err), "give a private key in OpenSSH or PEM form, and its passphrase if it has one"}
	}
	return ssh.PublicKeys(signer), func() {}, nil
}

func (c *connector) sshAgent() (ssh.AuthMethod, func(), error) {
	socket := c.getenv("SSH_AUTH_SOCK")
	if socket == "" {
		return nil, nil, &accessError{errors.New("no ssh key is given and no ssh agent runs"), "name a private key file, whose public half the server has as a deploy key"}
	}
	conn, err := net.DialTimeout("unix", socket, 5*time.Second) //nolint:noctx // local, and bounded
	if err != nil {
		return nil, nil, &accessError{fmt.Errorf("asking the ssh agent: %w", err), "start the agent, or name a private key file"}
	}
	return ssh.PublicKeysCallback(agent.NewClient(conn).Signers), func() { _ = conn.Close() }, nil
}

// sshError tells refused credentials from other failures of the handshake. The ssh package has no type for them.
func sshError(err error) error {
	var access *accessError
	if errors.As(err, &access) {
		return err
	}
	if strings.Contains(err.Error(), "unable to authenticate") {
		return &accessError{
			errors.New("the ssh server accepts neither the key nor the user"),
			"add the public key to the repository as a deploy key, and check the user in the URL (forges use git@)",
		}
	}
	return err
}

// shellQuote quotes s for a POSIX shell as git's sq_quote_buf does.
func shellQuote(s string) string {
	return "'" + strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(s) + "'"
}
