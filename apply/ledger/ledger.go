// Package ledger keeps what was begun at a revision in a file, so that a budget, a canary and a failure outlive the process
// that carries steps out. The controller and "gitvirt apply" of one host share the files. It decides nothing: package
// plan/policy says what a budget lets happen, and apply.Rollout what a canary does.
//
// A file is a line of JSON per thing that happened, the newest last. A step stands there before it begins: what a killed
// process has not written it has not done. Only who holds the lock of a fleet writes.
package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/schemas"
)

// State is how far a step is.
type State string

// The closed set of states.
const (
	Begun  State = "begun"
	Well   State = "well"
	Failed State = "failed"
)

// Entry is a step that was begun.
type Entry struct {
	At      time.Time       `json:"at"`
	State   State           `json:"state"`
	Address schemas.Address `json:"address"`
	Domain  string          `json:"domain"`
	Action  plan.Action     `json:"action"`
	Reason  plan.Reason     `json:"reason"`
	// Awaits says that the step is done when its guest is ready.
	Awaits bool          `json:"awaits,omitempty"`
	Ready  schemas.Ready `json:"ready,omitzero"`
	// Source, Labels, Was, Destroys and Interrupts are what the step takes of budgets (policy.Spent).
	Source     string            `json:"source,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	Was        []policy.Named    `json:"was,omitempty"`
	Destroys   bool              `json:"destroys,omitempty"`
	Interrupts bool              `json:"interrupts,omitempty"`
	// Canary is how many steps of the revision go first.
	Canary int `json:"canary,omitempty"`
}

// NewEntry is a step that begins, with what it takes of budgets.
func NewEntry(step *plan.Step, spent policy.Spent, at time.Time) Entry {
	return Entry{
		At: at.UTC(), State: Begun, Address: step.Address, Domain: step.Domain, Action: step.Action, Reason: step.Reason, Ready: step.Ready,
		Source: spent.Source, Labels: spent.Labels, Was: spent.Was, Destroys: spent.Destroys, Interrupts: spent.Interrupts,
	}
}

// part is what an entry is about: a domain that is made or changed, or one that goes.
type part struct {
	domain string
	gone   bool
}

var (
	// ErrBusy says that another process carries out steps that count, at any revision of the fleet.
	ErrBusy = errors.New("another process carries out steps that count for the Fleet's budgets or canary")
	// ErrMoved says that another process has begun steps since the account was read. Plan again.
	ErrMoved = errors.New("other steps were begun at this revision since the plan was made")
)

// maxFile bounds a file that is read, in bytes: 5,000 steps with ten attempts each have about 30 MB.
const maxFile = 256 << 20

// keep is how many revisions of a fleet have an account; older ones go. A branch that goes back finds its account again.
const keep = 20

// Book is where the accounts of a host are kept. Without a folder they are in memory only. It belongs to one goroutine.
type Book struct {
	dir string
	// locks are those that this process holds, by folder of a fleet.
	locks map[string]*lock
}

// lock is a file that is locked, with how many accounts need that.
type lock struct {
	file *os.File
	uses int
}

// NewBook returns the accounts in a folder, which is made when something is written.
func NewBook(dir string) *Book { return &Book{dir: dir, locks: map[string]*lock{}} }

// Account is what was begun at a revision of a fleet. It belongs to the goroutine of its Book.
type Account struct {
	book    *Book
	path    string // empty for memory only
	entries []Entry
	at      map[part]int
	// read is how much of the file the entries are of, in bytes.
	read int64
	// doubt says why the file cannot be relied on, unread why it cannot be read at all.
	doubt  string
	unread error
	locked bool
	// open counts the steps that were begun and have not ended.
	open int
}

// Account reads the account of a revision.
func (b *Book) Account(fleet, revision string) *Account {
	a := &Account{book: b}
	if b != nil && b.dir != "" {
		a.path = filepath.Join(b.dir, url.PathEscape(fleet), url.PathEscape(revision)+".jsonl")
	}
	a.Refresh()
	return a
}

// Refresh reads what others have written, and reports whether there is any.
func (a *Account) Refresh() bool {
	if a.path == "" {
		return false
	}
	if info, err := os.Stat(a.path); err == nil && info.Size() == a.read && a.doubt == "" {
		return false
	}
	size, doubt := a.read, a.doubt
	a.unread = a.load()
	if a.unread != nil {
		a.doubt = a.unread.Error()
	}
	return a.read != size || a.doubt != doubt
}

// load reads the file.
func (a *Account) load() error {
	content, err := readFile(a.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	}
	a.entries, a.at, a.doubt, a.read = nil, nil, "", int64(len(content))
	for number := 1; len(content) > 0; number++ {
		line, rest, whole := bytes.Cut(content, []byte{'\n'})
		content = rest
		if !whole {
			break // it was cut off while it was written, and so never begun
		}
		var entry Entry
		if json.Unmarshal(line, &entry) == nil {
			a.note(&entry)
		} else {
			a.doubt = fmt.Sprintf("line %d of %s cannot be read", number, a.path)
		}
	}
	return nil
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(content) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return content, err
}

// note takes an entry in the place of the one before about the same. What was spent stays spent.
func (a *Account) note(entry *Entry) {
	k := part{entry.Domain, entry.Action == plan.ActionDestroy}
	if i, known := a.at[k]; known {
		before := &a.entries[i]
		was, destroys, interrupts := before.Was, before.Destroys || entry.Destroys, before.Interrupts || entry.Interrupts
		*before = *entry
		before.Destroys, before.Interrupts, before.Was = destroys, interrupts, policy.Union(was, entry.Was)
		return
	}
	if a.at == nil {
		a.at = map[part]int{}
	}
	a.at[k] = len(a.entries)
	a.entries = append(a.entries, *entry)
}

// Entries are the steps that were begun, in the order of their beginning.
func (a *Account) Entries() []Entry { return slices.Clone(a.entries) }

// History is what was spent of budgets.
func (a *Account) History() policy.History {
	history := policy.History{Doubt: a.doubt}
	for i := range a.entries {
		if e := &a.entries[i]; e.Destroys || e.Interrupts {
			history.Done = append(history.Done, policy.Spent{Address: e.Address, Source: e.Source, Labels: e.Labels, Was: e.Was, Destroys: e.Destroys, Interrupts: e.Interrupts})
		}
	}
	return history
}

// Begin writes down that a step begins. It must not begin when there is an error: ErrBusy, ErrMoved, or that nothing can be
// written.
func (a *Account) Begin(entry Entry) error {
	entry.State = Begun
	if a.path == "" {
		a.note(&entry)
		a.open++
		return nil
	}
	if err := a.take(); err != nil {
		return err
	}
	if err := a.append(&entry); err != nil {
		a.unlock()
		return fmt.Errorf("writing down that a step begins: %w", err)
	}
	a.open++
	return nil
}

// Hold locks until Close, or until one more End than Begin: for a step that another process has begun and not ended, or for all
// that somebody carries out.
func (a *Account) Hold() error {
	if err := a.take(); err != nil {
		return err
	}
	a.open++
	return nil
}

// End writes down how a step ended that Begin or Hold was called for. What cannot be written down counts as not ended.
func (a *Account) End(entry Entry, state State) error {
	entry.State = state
	a.open--
	if a.path == "" {
		a.note(&entry)
		return nil
	}
	defer a.unlock()
	if err := a.append(&entry); err != nil {
		return fmt.Errorf("writing down how a step ended: %w", err)
	}
	return nil
}

// take keeps other processes from beginning steps that count.
func (a *Account) take() error {
	if a.locked || a.path == "" {
		return nil
	}
	if err := a.book.lock(filepath.Dir(a.path)); err != nil {
		return err
	}
	a.locked = true
	if a.Refresh() {
		a.unlock()
		return ErrMoved
	}
	return nil
}

// unlock lets others write when nothing is under way.
func (a *Account) unlock() {
	if a.open <= 0 {
		a.Close()
	}
}

// Close lets others write.
func (a *Account) Close() {
	if a.locked {
		a.locked = false
		a.book.unlock(filepath.Dir(a.path))
	}
}

// lock locks the accounts of a fleet.
func (b *Book) lock(dir string) error {
	if held := b.locks[dir]; held != nil {
		held.uses++
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return ErrBusy
		}
		return fmt.Errorf("locking %s: %w", file.Name(), err)
	}
	b.locks[dir] = &lock{file: file, uses: 1}
	return nil
}

func (b *Book) unlock(dir string) {
	held := b.locks[dir]
	if held.uses--; held.uses == 0 {
		delete(b.locks, dir)
		_ = held.file.Close() // which ends the lock
	}
}

// append writes an entry to the file, for good.
func (a *Account) append(entry *Entry) error {
	if a.unread != nil {
		return a.unread
	}
	line, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	if a.read == 0 {
		a.forget()
	}
	file, err := os.OpenFile(a.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // Sync has told what matters
	// What a killed process has cut off goes.
	at := a.read
	if torn, err := tornAt(file, at); err != nil {
		return err
	} else if torn >= 0 {
		at = torn
		if err := file.Truncate(at); err != nil {
			return err
		}
	}
	line = append(line, '\n')
	if _, err := file.WriteAt(line, at); err != nil {
		return errors.Join(err, file.Truncate(at))
	}
	if err := file.Sync(); err != nil {
		return err
	}
	a.read = at + int64(len(line))
	a.note(entry)
	return nil
}

// tornAt returns where the last line begins when it has no end, and -1 when it has one.
func tornAt(file *os.File, size int64) (int64, error) {
	if size == 0 {
		return -1, nil
	}
	const most = 64 << 10 // no line is that long
	tail := make([]byte, min(size, most))
	if _, err := file.ReadAt(tail, size-int64(len(tail))); err != nil {
		return 0, err
	}
	if tail[len(tail)-1] == '\n' {
		return -1, nil
	}
	return size - int64(len(tail)) + int64(bytes.LastIndexByte(tail, '\n')) + 1, nil
}

// forget removes the oldest accounts of the fleet when there are too many. That it fails is no reason to do less.
func (a *Account) forget() {
	paths, _ := filepath.Glob(filepath.Join(filepath.Dir(a.path), "*.jsonl"))
	if len(paths) < keep {
		return
	}
	written := map[string]time.Time{}
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil {
			written[path] = info.ModTime()
		}
	}
	slices.SortFunc(paths, func(one, other string) int { return written[one].Compare(written[other]) })
	for _, path := range paths[:len(paths)-keep+1] {
		_ = os.Remove(path)
	}
}
