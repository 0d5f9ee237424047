package schemas

import (
	"fmt"
	"strconv"
	"strings"
)

// Closest returns the candidate that a misspelt word was most likely meant to be, or "" when none is near.
func Closest(word string, candidates []string) string { return closest(word, candidates) }

// closest returns the candidate that the user most likely meant by word, or "" when none is near: the same word in
// another case first, then the one with the smallest edit distance, up to a third of the word's length.
func closest(word string, candidates []string) string {
	best, bestDistance := "", 1+max(1, min(3, len(word)/3))
	if len(word) > 64 {
		return ""
	}
	for _, candidate := range candidates {
		if strings.EqualFold(word, candidate) {
			return candidate
		}
		distance := editDistance(strings.ToLower(word), strings.ToLower(candidate))
		if distance < bestDistance {
			best, bestDistance = candidate, distance
		}
	}
	if best == "" && len(word) >= 3 {
		for _, candidate := range candidates {
			if len(candidate) > len(word) && strings.EqualFold(candidate[:len(word)], word) {
				return candidate
			}
		}
	}
	if len(word) <= 2 && bestDistance > 0 && !strings.HasPrefix(best, word) {
		return ""
	}
	return best
}

// editDistance counts the insertions, deletions, substitutions and swaps of neighbours that turn a into b
// (optimal string alignment).
func editDistance(a, b string) int {
	if a == b {
		return 0
	}
	before := make([]int, len(b)+1)
	last := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// suggestField says what to do about a field that info does not have: a similar name, or the nested mapping that
// has it. near is the path of the field that was probably meant, relative to the mapping, or "".
func suggestField(info *typeInfo, name string) (near, fix string) {
	if name == "" {
		return "", "remove it, or write its name"
	}
	names := make([]string, len(info.fields))
	for i, f := range info.fields {
		names[i] = f.name
	}
	near = closest(name, names)
	if strings.EqualFold(near, name) {
		return near, fmt.Sprintf("did you mean %q?", near)
	}
	if place := findBelow(info, name, 3); place != "" {
		return place, fmt.Sprintf("did you mean %s?", place)
	}
	if near != "" {
		return near, fmt.Sprintf("did you mean %q?", near)
	}
	if len(names) == 0 {
		return "", "this mapping takes no fields: remove it"
	}
	if len(names) <= 12 {
		return "", "known here: " + strings.Join(names, ", ")
	}
	return "", "remove it, or look it up in KubeVirt's API reference"
}

// findBelow looks for a field of exactly this name in the structs below info, nearest first, and returns its path.
func findBelow(info *typeInfo, name string, depth int) string {
	type place struct {
		info *typeInfo
		path string
	}
	level := []place{{info, ""}}
	for range depth {
		var next []place
		for _, p := range level {
			for _, f := range p.info.fields {
				below := f.info
				for below.shape == shapePointer {
					below = below.elem
				}
				if below.shape != shapeStruct || f.name == "status" || f.name == "metadata" {
					continue
				}
				path := p.path + f.name
				if _, ok := below.byName[name]; ok {
					return path + "." + name
				}
				next = append(next, place{below, path + "."})
			}
		}
		level = next
	}
	return ""
}

// quoteValue prints a user's value in a message, shortened.
func quoteValue(s string) string {
	const limit = 48
	if len(s) > limit {
		cut := limit
		for cut > 0 && s[cut]&0xC0 == 0x80 {
			cut--
		}
		return strconv.Quote(s[:cut] + "…")
	}
	return strconv.Quote(s)
}
