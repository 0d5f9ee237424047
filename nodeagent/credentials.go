package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/guestagent"
	"github.com/gitvirt/gitvirt/schemas"
)

// credentials are what a guest's agent is to make of accessCredentials. Sensitive.
type credentials struct {
	// Keys has for each user the lines of authorized_keys.
	Keys map[string][]string `json:"keys,omitempty"`
	// Passwords has the password of each user.
	Passwords map[string][]byte `json:"passwords,omitempty"`
}

// throughAgent reports whether a credential goes through the guest agent. The others are part of cloud-init's volume.
func throughAgent(credential kubevirtv1.AccessCredential) bool {
	keys, password := credential.SSHPublicKey, credential.UserPassword
	return (keys != nil && keys.PropagationMethod.QemuGuestAgent != nil) || (password != nil && password.PropagationMethod.QemuGuestAgent != nil)
}

// credentialsOf gathers the access credentials that go through the guest agent; nil when there are none. A user that several
// credentials name gets the keys of all.
func credentialsOf(m *machine) *credentials {
	if !slices.ContainsFunc(m.spec().AccessCredentials, throughAgent) {
		return nil
	}
	out := &credentials{Keys: map[string][]string{}, Passwords: map[string][]byte{}}
	for i, credential := range m.spec().AccessCredentials {
		values := m.wire.GetContents()[schemas.CredentialContent(i)].GetValues()
		if in := credential.SSHPublicKey; in != nil && in.PropagationMethod.QemuGuestAgent != nil {
			var texts []string
			for _, name := range slices.Sorted(maps.Keys(values)) {
				texts = append(texts, string(values[name]))
			}
			for _, user := range in.PropagationMethod.QemuGuestAgent.Users {
				out.Keys[user] = guestagent.KeysOf(append(slices.Clone(out.Keys[user]), texts...)...)
			}
		}
		if in := credential.UserPassword; in != nil && in.PropagationMethod.QemuGuestAgent != nil {
			maps.Copy(out.Passwords, values)
		}
	}
	return out
}

// apply brings the credentials into a guest. Each is tried, so that one user whom the guest lacks costs nobody else.
func (c *credentials) apply(ctx context.Context, agent guestagent.Agent) error {
	var errs []error
	for _, user := range slices.Sorted(maps.Keys(c.Keys)) {
		if err := agent.SetSSHKeys(ctx, user, c.Keys[user]); err != nil {
			errs = append(errs, fmt.Errorf("ssh keys of %s: %w", user, err))
		}
	}
	for _, user := range slices.Sorted(maps.Keys(c.Passwords)) {
		if err := agent.SetPassword(ctx, user, c.Passwords[user]); err != nil {
			errs = append(errs, fmt.Errorf("password of %s: %w", user, err))
		}
	}
	return errors.Join(errs...)
}

// credentialsFile is the name of the file, in a VM's folder, that keeps its access credentials for the next start of the
// agent or of the guest: neither the domain nor its record may hold them.
const credentialsFile = "credentials.json"

// credentialFiles keeps access credentials, each in a file that only root reads, as the cloud-init image beside it.
type credentialFiles struct {
	dir string // DIR/vms
}

func (f *credentialFiles) path(address schemas.Address) string {
	return filepath.Join(f.dir, address.Namespace, address.Name, credentialsFile)
}

// put keeps the credentials of a VM; nil removes those that it had.
func (f *credentialFiles) put(address schemas.Address, in *credentials) error {
	if in == nil {
		return f.remove(address)
	}
	content, err := json.Marshal(in)
	if err != nil {
		return errors.New("encoding the access credentials failed") // the encoder's error may quote them
	}
	path := f.path(address)
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil { //nolint:gosec // QEMU's user must reach the disks below
		return fmt.Errorf("making the VM's folder: %w", err)
	}
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return fmt.Errorf("writing the access credentials: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("writing the access credentials: %w", err)
	}
	return nil
}

// get returns the credentials of a VM; nil when it has none.
func (f *credentialFiles) get(address schemas.Address) (*credentials, error) {
	content, err := os.ReadFile(f.path(address))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no credentials is the usual case
	}
	if err != nil {
		return nil, fmt.Errorf("reading the access credentials: %w", err)
	}
	out := &credentials{}
	if err := json.Unmarshal(content, out); err != nil {
		return nil, errors.New("reading the access credentials: the file is damaged; apply the VM again")
	}
	return out, nil
}

func (f *credentialFiles) remove(address schemas.Address) error {
	for _, path := range []string{f.path(address), f.path(address) + ".new"} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing the access credentials: %w", err)
		}
	}
	return nil
}

// sweepCredentials removes the credentials of VMs that this host has not: of steps that ended early.
func (a *Agent) sweepCredentials(ctx context.Context) error {
	found, err := filepath.Glob(filepath.Join(a.secrets.dir, "*", "*", credentialsFile+"*"))
	if err != nil {
		return err
	}
	for _, path := range found {
		dir, name := filepath.Split(filepath.Dir(path))
		address := schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: filepath.Base(dir), Name: name}
		domain := a.view.madeAs(address)
		unlock, idle := a.locks.try(domain)
		if !idle {
			continue
		}
		now, err := a.refresh(ctx, domain)
		if err == nil && now == nil { // neither a domain nor the trace of one
			err = a.secrets.remove(address)
		}
		unlock()
		if err != nil {
			return err
		}
	}
	return nil
}
