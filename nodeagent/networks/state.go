package networks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// stateFile is what has to be known of a Pod that its namespace does not say any more once a bridge is made.
const stateFile = "networks.json"

// state is the content of that file.
type state struct {
	// Namespace is the one that it tells of.
	Namespace string `json:"namespace"`
	// Links are the interfaces as they were before they were changed.
	Links []Link `json:"links"`
}

func (s *state) link(name string) *Link {
	facts := Facts{Links: s.Links}
	return facts.link(name)
}

// load reads what is noted of this namespace; of another, it is nothing.
func (p *Pod) load() (*state, error) {
	fresh := &state{Namespace: p.identity}
	path := filepath.Join(p.folder, stateFile)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fresh, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading what the Pod's network was: %w", err)
	}
	var noted state
	if err := json.Unmarshal(content, &noted); err != nil {
		return nil, fmt.Errorf("reading what the Pod's network was, in %s: %w", path, err)
	}
	if noted.Namespace != p.identity {
		return fresh, nil
	}
	return &noted, nil
}

// save writes the file as a whole, so that no reader sees half of it, also after a power cut.
func (p *Pod) save(s *state) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("noting what the Pod's network was: %w", err)
		}
	}()
	path := filepath.Join(p.folder, stateFile)
	if len(s.Links) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	content, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.folder, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(p.folder, stateFile+".*")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return os.Rename(file.Name(), path)
}
