package images

import (
	"archive/tar"
	"fmt"
	"path"
	"slices"
	"strings"
)

// pathSearch looks for one path.
type pathSearch struct {
	path string
	// found says that the path is a regular file, whose contents were taken.
	found bool
	size  int64
	// next is where a link leads instead.
	next string
	// decided and hidden are about the layer that is being read.
	decided bool
	hidden  bool
}

// entry implements search. A later entry of the same name in a layer replaces an earlier one.
func (s *pathSearch) entry(name string, header *tar.Header) (bool, error) {
	if hides(name, s.path) {
		s.hidden = true
		return false, nil
	}
	isDir := header.Typeflag == tar.TypeDir
	switch {
	case name == s.path:
		return s.self(header)
	case under(name, s.path) && header.Typeflag == tar.TypeSymlink:
		rest := strings.TrimPrefix(s.path, name)
		s.decided, s.found = true, false
		s.next = rooted(path.Dir(name), header.Linkname) + rest
	case under(name, s.path) && !isDir:
		s.decided, s.found, s.next = true, false, ""
	case under(name, s.path) && s.next != "" && !s.found:
		s.decided, s.next = false, "" // the link was replaced by a directory
	}
	return false, nil
}

func (s *pathSearch) self(header *tar.Header) (bool, error) {
	s.decided, s.found, s.next = true, false, ""
	switch header.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		return true, nil
	case tar.TypeSymlink:
		s.next = rooted(path.Dir(s.path), header.Linkname)
	case tar.TypeLink:
		s.next = rooted("", "/"+header.Linkname)
	default:
		return false, fmt.Errorf("/%s is not a regular file: %w", s.path, ErrInvalid)
	}
	return false, nil
}

func (s *pathSearch) keep(size int64) { s.found, s.size = true, size }

func (s *pathSearch) endLayer() bool { return s.decided || s.hidden }

// diskSearch looks for the only file in /disk.
type diskSearch struct {
	// names are the files that are visible, sorted; the contents of the first that was met were taken.
	names  []string
	taken  string
	size   int64
	isLink bool
	// hidden are the names that upper layers hide, opaque says that they hide all.
	hidden map[string]bool
	opaque bool
	// whiteouts and closes are those of the layer that is being read; they count for the layers below it.
	whiteouts []string
	closes    bool
}

// entry implements search.
func (s *diskSearch) entry(name string, header *tar.Header) (bool, error) {
	if hides(name, diskDir) || name == diskDir && header.Typeflag != tar.TypeDir {
		s.closes = true
		return false, nil
	}
	dir, base := path.Split(name)
	if path.Clean(dir) != diskDir || dir == "" {
		return false, nil
	}
	if hiddenName, isWhiteout := strings.CutPrefix(base, whiteoutPrefix); isWhiteout {
		if base == opaqueWhiteout {
			s.closes = true
		} else {
			s.whiteouts = append(s.whiteouts, hiddenName)
		}
		return false, nil
	}
	return s.child(base, header), nil
}

// child is told of an entry in /disk that is not a whiteout.
func (s *diskSearch) child(base string, header *tar.Header) bool {
	if s.opaque || s.hidden[base] {
		return false
	}
	s.whiteouts = append(s.whiteouts, base) // an upper entry hides those below, whatever they are
	isFile := header.Typeflag == tar.TypeReg || header.Typeflag == tar.TypeGNUSparse
	isLink := header.Typeflag == tar.TypeSymlink || header.Typeflag == tar.TypeLink
	if !isFile && !isLink {
		return false
	}
	if !slices.Contains(s.names, base) {
		s.names = append(s.names, base)
		slices.Sort(s.names)
	}
	if s.taken == "" {
		s.taken = base
	}
	if s.taken == base {
		s.isLink = isLink
	}
	return isFile && s.taken == base
}

func (s *diskSearch) keep(size int64) { s.size = size }

func (s *diskSearch) endLayer() bool {
	for _, name := range s.whiteouts {
		s.hidden[name] = true
	}
	s.opaque = s.opaque || s.closes
	s.whiteouts, s.closes = nil, false
	return s.opaque || len(s.names) > 1
}

// hides reports whether an entry is a whiteout that hides path in the layers below.
func hides(entry, path string) bool {
	dir, base := "", entry
	if slash := strings.LastIndexByte(entry, '/'); slash >= 0 {
		dir, base = entry[:slash], entry[slash+1:]
	}
	if base == opaqueWhiteout {
		return dir == "" || under(dir, path)
	}
	hidden, isWhiteout := strings.CutPrefix(base, whiteoutPrefix)
	if !isWhiteout {
		return false
	}
	if dir != "" {
		hidden = dir + "/" + hidden
	}
	return hidden == path || under(hidden, path)
}

// under reports whether path lies in the directory dir.
func under(dir, path string) bool { return strings.HasPrefix(path, dir+"/") }

// rooted resolves the target of a link in dir, inside the image.
func rooted(dir, target string) string {
	if !strings.HasPrefix(target, "/") {
		target = "/" + dir + "/" + target
	}
	return strings.TrimPrefix(path.Clean(target), "/")
}
