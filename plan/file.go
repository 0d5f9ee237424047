package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// FileFormat is what the first field of a saved plan says, FileVersion its version: the major part changes when older
// readers would misunderstand it.
const (
	FileFormat  = "gitvirt-plan"
	FileVersion = "1.0"
)

// Origin is where the manifests of a plan came from, without anything secret: credentials are given again where they
// are needed.
type Origin struct {
	// Git is the repository's URL without credentials, Branch and Path what of it is followed.
	Git    string `json:"git,omitempty"`
	Branch string `json:"branch,omitempty"`
	Path   string `json:"path,omitempty"`
	// Directory is an absolute path, where there is no repository; Files are relative to it, when only they were read.
	Directory string   `json:"directory,omitempty"`
	Files     []string `json:"files,omitempty"`
	// Revision is the commit, or a hash of what was read.
	Revision string `json:"revision"`
}

// String names the origin for people.
func (o Origin) String() string {
	switch {
	case o.Git != "" && o.Path != "":
		return o.Git + ", folder " + o.Path
	case o.Git != "":
		return o.Git
	case len(o.Files) > 0:
		return strings.Join(o.Files, ", ")
	}
	return o.Directory
}

// File is a saved plan: what was shown to people, and what is needed to make the same plan again. What is carried out is
// always made anew from git and the host; the file only says what it has to be.
type File struct {
	Format  string `json:"format"`
	Version string `json:"version"`
	// Gitvirt is the version of the program that made the plan.
	Gitvirt string `json:"gitvirt"`
	// Digest tells damage and edits: a hash of all that follows.
	Digest string `json:"digest"`
	Source Origin `json:"source"`
	Plan   *Plan  `json:"plan"`
}

// ErrNoPlanFile says that a file is not a saved plan at all.
var ErrNoPlanFile = errors.New("it is not a plan that was saved with gitvirt plan --out")

// IsFile reports whether content, or the beginning of it, claims to be a saved plan.
func IsFile(content []byte) bool {
	head := bytes.TrimLeft(content[:min(len(content), 512)], " \t\r\n")
	return bytes.HasPrefix(head, []byte("{")) && bytes.Contains(head, []byte(`"`+FileFormat+`"`))
}

// EncodeFile returns a plan as it is saved. version is the program's.
func EncodeFile(p *Plan, origin Origin, version string) ([]byte, error) {
	file := File{Format: FileFormat, Version: FileVersion, Gitvirt: version, Source: origin, Plan: p}
	encoded, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encoding the plan: %w", err)
	}
	source, err := json.Marshal(origin)
	if err != nil {
		return nil, fmt.Errorf("encoding the plan's source: %w", err)
	}
	if file.Digest, err = digest(FileVersion, source, encoded); err != nil {
		return nil, err
	}
	content, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding the plan: %w", err)
	}
	return append(content, '\n'), nil
}

// digest is the hash of where a plan is from and of what it says, whatever the white space between.
func digest(version string, source, encoded []byte) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00", version)
	for _, part := range [][]byte{source, encoded} {
		var compact bytes.Buffer
		if err := json.Compact(&compact, part); err != nil {
			return "", fmt.Errorf("encoding the plan: %w", err)
		}
		fmt.Fprintf(h, "%s\x00", compact.Bytes())
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// DecodeFile reads a saved plan. What is not one is an ErrNoPlanFile; what is damaged, edited or of a newer format is
// another error that says so.
func DecodeFile(content []byte) (*File, error) {
	if !IsFile(content) {
		return nil, ErrNoPlanFile
	}
	var raw struct {
		Format  string          `json:"format"`
		Version string          `json:"version"`
		Gitvirt string          `json:"gitvirt"`
		Digest  string          `json:"digest"`
		Source  json.RawMessage `json:"source"`
		Plan    json.RawMessage `json:"plan"`
	}
	if err := json.Unmarshal(content, &raw); err != nil {
		return nil, fmt.Errorf("the plan is damaged (%w); save it again", err)
	}
	if raw.Format != FileFormat {
		return nil, ErrNoPlanFile
	}
	if major(raw.Version) != major(FileVersion) {
		return nil, fmt.Errorf("the plan has the format %s of gitvirt %s, and this gitvirt reads %s; apply it with the gitvirt that saved it, or save it again",
			raw.Version, raw.Gitvirt, FileVersion)
	}
	want, err := digest(raw.Version, raw.Source, raw.Plan)
	if err != nil || want != raw.Digest {
		return nil, errors.New("the plan was edited or damaged after it was saved: its digest does not fit; save it again")
	}
	file := &File{Format: raw.Format, Version: raw.Version, Gitvirt: raw.Gitvirt, Digest: raw.Digest, Plan: new(Plan)}
	if err := json.Unmarshal(raw.Source, &file.Source); err != nil {
		return nil, fmt.Errorf("the source of the plan cannot be understood (%w); save it again with this gitvirt", err)
	}
	if err := json.Unmarshal(raw.Plan, file.Plan); err != nil {
		return nil, fmt.Errorf("the plan cannot be understood (%w); save it again with this gitvirt", err)
	}
	if major(file.Plan.FormatVersion) != major(FormatVersion) {
		return nil, fmt.Errorf("the plan has the JSON format %s of gitvirt %s, and this gitvirt reads %s; apply it with the gitvirt that saved it, or save it again",
			file.Plan.FormatVersion, raw.Gitvirt, FormatVersion)
	}
	return file, nil
}

func major(version string) string {
	number, _, _ := strings.Cut(version, ".")
	return number
}
