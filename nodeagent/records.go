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
// itself carries the record, and the copy serves only to notice that somebody undefined it. Losing it loses nothing
// else.
const recordFile = "record.xml"

// records are the traces of the domains that were applied on this host. Only their names are kept in memory: a trace is
// read when its domain is missing.
type records struct {
	dir string // DIR/vms
	mu  sync.Mutex
	all map[string]schemas.Address // by domain name
}

// openRecords reads the traces. One that cannot be read is no trace.
func openRecords(dir string) (*records, error) {
	r := &records{dir: dir, all: map[string]schemas.Address{}}
	found, err := filepath.Glob(filepath.Join(dir, "*", "*", recordFile))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", dir, err)
	}
	for _, path := range found {
		record, err := readTrace(path)
		if err != nil {
			return nil, err
		}
		if record != nil {
			r.all[record.DomainName()] = record.Made()
		}
	}
	return r, nil
}

// readTrace reads a trace; one that is gone or not understood is none.
func readTrace(path string) (*domainxml.Record, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no trace is the usual case
	}
	if err != nil {
		return nil, fmt.Errorf("reading a VM's record: %w", err)
	}
	record, err := domainxml.ParseRecord("<domain><metadata>" + string(content) + "</metadata></domain>")
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // what cannot be understood is no trace
	}
	return record, nil
}

func (r *records) path(address schemas.Address) string {
	return filepath.Join(r.dir, address.Namespace, address.Name, recordFile)
}

// get returns the trace of a domain, or nil.
func (r *records) get(name string) *domainxml.Record {
	r.mu.Lock()
	address, ok := r.all[name]
	r.mu.Unlock()
	if !ok {
		return nil
	}
	record, err := readTrace(r.path(address))
	if err != nil {
		return nil // it cannot be read now; the domain is then told as absent, and its manifest creates it anew
	}
	return record
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
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		return fmt.Errorf("writing the VM's record: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
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
