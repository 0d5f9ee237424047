// Package diff3 merges two changed texts with the text that both began from, line by line, as git's merge does. It is pure, keeps line
// endings and a missing newline at the end as they are, and writes no conflict markers: a text that is in conflict has no merged form.
package diff3

import "bytes"

// binaryPrefix is how far git looks for the zero byte that makes a file a binary one.
const binaryPrefix = 8000

// Binary reports whether git takes content for a binary file, which is merged as a whole or not at all.
func Binary(content []byte) bool {
	return bytes.IndexByte(content[:min(len(content), binaryPrefix)], 0) >= 0
}

// Merge returns base with the changes of both sides, and whether they go together. Changes that overlap or touch are in conflict unless
// they are the same, which is git's rule.
func Merge(base, ours, theirs []byte) (merged []byte, clean bool) {
	switch {
	case bytes.Equal(ours, theirs), bytes.Equal(base, theirs):
		return ours, true
	case bytes.Equal(base, ours):
		return theirs, true
	case Binary(base), Binary(ours), Binary(theirs):
		return nil, false
	}
	names := map[string]int32{}
	m := merger{base: newText(base, names), sides: [2]text{newText(ours, names), newText(theirs, names)}}
	m.hunks = [2][]hunk{diff(m.base.lines, m.sides[0].lines), diff(m.base.lines, m.sides[1].lines)}
	return m.merge()
}

// text is a text in lines, each named by a number that equal lines share.
type text struct {
	content []byte
	lines   []int32
	// ends are the offsets behind each line.
	ends []int
}

func newText(content []byte, names map[string]int32) text {
	t := text{content: content}
	for at := 0; at < len(content); {
		end := len(content)
		if i := bytes.IndexByte(content[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		line := content[at:end]
		name, known := names[string(line)]
		if !known {
			name = int32(len(names)) //nolint:gosec // a text of 2^31 lines is none that is merged
			names[string(line)] = name
		}
		t.lines, t.ends = append(t.lines, name), append(t.ends, end)
		at = end
	}
	return t
}

// slice returns the lines from one to another.
func (t *text) slice(from, to int) []byte { return t.content[t.offset(from):t.offset(to)] }

func (t *text) offset(line int) int {
	if line == 0 {
		return 0
	}
	return t.ends[line-1]
}

// hunk is a change: lines of the base from a to b became lines of a side from c to d.
type hunk struct{ a, b, c, d int }

type merger struct {
	base  text
	sides [2]text
	hunks [2][]hunk
	out   []byte
	at    int // the lines of the base before it are done
}

func (m *merger) merge() ([]byte, bool) {
	for len(m.hunks[0]) > 0 || len(m.hunks[1]) > 0 {
		low, high := m.next()
		var from, to [2]int
		changed := [2]bool{}
		for side := range m.hunks {
			from[side], to[side], changed[side] = m.take(side, low, high)
		}
		m.out = append(m.out, m.base.slice(m.at, low)...)
		first, second := m.sides[0].slice(from[0], to[0]), m.sides[1].slice(from[1], to[1])
		switch {
		case changed[0] && changed[1] && !bytes.Equal(first, second):
			return nil, false
		case changed[0]:
			m.out = append(m.out, first...)
		default:
			m.out = append(m.out, second...)
		}
		m.at = high
	}
	return append(m.out, m.base.slice(m.at, len(m.base.lines))...), true
}

// next returns the next lines of the base that changed, as far as changes of the two sides touch.
func (m *merger) next() (low, high int) {
	first := 0
	if len(m.hunks[0]) == 0 || len(m.hunks[1]) > 0 && m.hunks[1][0].a < m.hunks[0][0].a {
		first = 1
	}
	low, high = m.hunks[first][0].a, m.hunks[first][0].b
	for taken := [2]int{}; ; {
		grown := false
		for side, hunks := range m.hunks {
			for taken[side] < len(hunks) && hunks[taken[side]].a <= high {
				high = max(high, hunks[taken[side]].b)
				taken[side]++
				grown = true
			}
		}
		if !grown {
			return low, high
		}
	}
}

// take removes the changes of a side up to a line of the base, and returns which lines of the side stand for those from low to high.
func (m *merger) take(side, low, high int) (from, to int, changed bool) {
	hunks := m.hunks[side]
	count := 0
	for count < len(hunks) && hunks[count].a <= high && hunks[count].b <= high {
		count++
	}
	if count == 0 {
		return 0, 0, false
	}
	first, last := hunks[0], hunks[count-1]
	m.hunks[side] = hunks[count:]
	return first.c - (first.a - low), last.d + (high - last.b), true
}
