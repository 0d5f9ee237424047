package nodeagent

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// recordFile is the name of the copy of a domain's record in the VM's folder. It is a trace, not a state: the domain
// itself carries the record, and the copy serves only while it is missing, because somebody undefined it or it is being made anew.
const recordFile = "record.xml"

// records are the traces of the domains that were applied on this host. Only their names are kept in memory: a trace is
// read when its domain is missing.
type records struct {
	dir string // DIR/vms
	mu  sync.Mutex
	all map[string]schemas.Address // by domain name
}

// openRecords reads the traces. One that cannot be read is that of a domain named after its folder, until its VM is written again.
func openRecords(dir string) (*records, error) {
	r := &records{dir: dir, all: map[string]schemas.Address{}}
	found, err := filepath.Glob(filepath.Join(dir, "*", "*", recordFile))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", dir, err)
	}
	for _, path := range found {
		made := schemas.Address{
			Kind: schemas.KindVirtualMachine, Namespace: filepath.Base(filepath.Dir(filepath.Dir(path))), Name: filepath.Base(filepath.Dir(path)),
		}
		if checkNames(made) != nil {
			continue // no VM has such a name
		}
		name := domainxml.DomainName(made)
		if record, err := readTrace(path); err == nil && record != nil {
			name, made = record.DomainName(), record.Made()
		}
		r.all[name] = made
	}
	return r, nil
}

// readTrace reads a trace; only one that is gone is none.
func readTrace(path string) (*domainxml.Record, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no trace is the usual case
	}
	if err != nil {
		return nil, fmt.Errorf("its trace cannot be read: %w", err)
	}
	record, err := domainxml.ParseRecord("<domain><metadata>" + string(content) + "</metadata></domain>")
	if err != nil {
		return nil, fmt.Errorf("its trace %s cannot be understood (%w); define the domain again, or remove the file to have a new one made", path, err)
	}
	return record, nil
}

func (r *records) path(address schemas.Address) string {
	return filepath.Join(r.dir, address.Namespace, address.Name, recordFile)
}

// get returns the trace of a domain; nil when there is none. What cannot be read may be anybody's trace, and is an error: a domain that is
// taken for absent is made anew, on new disks if the lost one was renamed or adopted.
func (r *records) get(name string) (*domainxml.Record, error) {
	address := r.addressOf(name)
	if address.IsZero() {
		return nil, nil //nolint:nilnil // no trace is the usual case
	}
	record, err := readTrace(r.path(address))
	if err != nil || record == nil || record.DomainName() != name {
		return nil, err // in the last case it was unreadable when the agent started, and is another domain's
	}
	return record, nil
}

// addressOf returns the address that a domain with a trace was made under; the zero address is none.
func (r *records) addressOf(name string) schemas.Address {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[name]
}

func (r *records) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.all))
}

// put writes the trace of a domain; one that says the same already stays as it is.
func (r *records) put(record *domainxml.Record) error {
	content, err := record.XML()
	if err != nil {
		return err
	}
	path := r.path(record.Made())
	if before, err := os.ReadFile(path); err != nil || string(before) != content {
		if err := writeTrace(path, content); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[record.DomainName()] = record.Made()
	return nil
}

func writeTrace(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil { //nolint:gosec // QEMU's user must reach the disks below
		return fmt.Errorf("making the VM's folder: %w", err)
	}
	file, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("writing the VM's record: %w", err)
	}
	// On the disk before it has its name: a host that loses power has the old one or this one, and no empty one.
	_, err = file.WriteString(content)
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("writing the VM's record: %w", err)
	}
	return nil
}

// remove forgets a domain that was destroyed by gitvirt.
func (r *records) remove(record *domainxml.Record) error {
	if err := os.Remove(r.path(record.Made())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the VM's record: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, record.DomainName())
	return nil
}
