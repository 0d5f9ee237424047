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
)

// recordFile is the name of the copy of a domain's record in the VM's folder. It is a trace, not a state: the domain
// itself carries the record, and the copy serves only to notice that somebody undefined it. Losing it loses nothing
// else.
const recordFile = "record.xml"

// records are the traces of the domains that were applied on this host.
type records struct {
	dir string // DIR/vms
	mu  sync.Mutex
	all map[string]*domainxml.Record // by domain name
}

// openRecords reads the traces. One that cannot be read is no trace.
func openRecords(dir string) (*records, error) {
	r := &records{dir: dir, all: map[string]*domainxml.Record{}}
	found, err := filepath.Glob(filepath.Join(dir, "*", "*", recordFile))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", dir, err)
	}
	for _, path := range found {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading a VM's record: %w", err)
		}
		if record, err := domainxml.ParseRecord("<domain><metadata>" + string(content) + "</metadata></domain>"); err == nil {
			r.all[domainxml.DomainName(record.Address)] = record
		}
	}
	return r, nil
}

func (r *records) get(name string) *domainxml.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[name]
}

func (r *records) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.all))
}

// put writes the trace of a domain that is about to be defined.
func (r *records) put(record *domainxml.Record) error {
	content, err := record.XML()
	if err != nil {
		return err
	}
	dir := filepath.Join(r.dir, record.Address.Namespace, record.Address.Name)
	if err := os.MkdirAll(dir, 0o711); err != nil { //nolint:gosec // QEMU's user must reach the disks below
		return fmt.Errorf("making the VM's folder: %w", err)
	}
	path := filepath.Join(dir, recordFile)
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		return fmt.Errorf("writing the VM's record: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("writing the VM's record: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[domainxml.DomainName(record.Address)] = record
	return nil
}

// remove forgets a domain that was destroyed by gitvirt.
func (r *records) remove(record *domainxml.Record) error {
	path := filepath.Join(r.dir, record.Address.Namespace, record.Address.Name, recordFile)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the VM's record: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, domainxml.DomainName(record.Address))
	return nil
}
