package diff3

// maxEdits bounds the work for two texts that have little in common: what differs by more lines counts as replaced, from the first line
// that differs to the last. That finds more conflicts than there are and never fewer.
const maxEdits = 2000

// diff returns the changes that make b of a, ordered, none of which touch. It is Myers' algorithm ("An O(ND) Difference Algorithm and
// Its Variations", 1986).
func diff(a, b []int32) []hunk {
	start := 0
	for start < len(a) && start < len(b) && a[start] == b[start] {
		start++
	}
	endA, endB := len(a), len(b)
	for endA > start && endB > start && a[endA-1] == b[endB-1] {
		endA--
		endB--
	}
	if endA == start && endB == start {
		return nil
	}
	hunks, ok := shortest(a[start:endA], b[start:endB])
	if !ok {
		return []hunk{{start, endA, start, endB}}
	}
	for i := range hunks {
		h := &hunks[i]
		h.a, h.b, h.c, h.d = h.a+start, h.b+start, h.c+start, h.d+start
	}
	return slide(hunks, a, b)
}

// shortest finds the fewest lines that are removed and added.
func shortest(a, b []int32) ([]hunk, bool) {
	n, m := len(a), len(b)
	most := min(n+m, maxEdits)
	// reach[k+most+1] is how far along a the diagonal k is reached with so many edits; rows keeps it for the way back.
	reach := make([]int32, 2*most+3)
	var rows [][]int32
	for edits := 0; edits <= most; edits++ {
		for k := -edits; k <= edits; k += 2 {
			i := k + most + 1
			var x int
			if k == -edits || k != edits && reach[i-1] < reach[i+1] {
				x = int(reach[i+1])
			} else {
				x = int(reach[i-1]) + 1
			}
			y := x - k
			for x < n && y < m && a[x] == b[y] {
				x++
				y++
			}
			reach[i] = int32(x) //nolint:gosec // lines of a text
			if x >= n && y >= m {
				return walkBack(rows, n, m), true
			}
		}
		rows = append(rows, append([]int32(nil), reach[most+1-edits:most+2+edits]...))
	}
	return nil, false
}

// walkBack follows the way that shortest found, from its end.
func walkBack(rows [][]int32, x, y int) []hunk {
	var back []hunk
	for edits := len(rows); edits > 0; edits-- {
		row := rows[edits-1] // of edits-1, diagonals from -(edits-1) to edits-1
		at := func(k int) int {
			if i := k + edits - 1; i >= 0 && i < len(row) {
				return int(row[i])
			}
			return -1
		}
		k := x - y
		previous := k - 1 // a line was removed
		if k == -edits || k != edits && at(k-1) < at(k+1) {
			previous = k + 1 // a line was added
		}
		fromX := at(previous)
		fromY := fromX - previous
		step := hunk{fromX, fromX + 1, fromY, fromY}
		if previous == k+1 {
			step = hunk{fromX, fromX, fromY, fromY + 1}
		}
		if last := len(back) - 1; last >= 0 && back[last].a == step.b && back[last].c == step.d {
			back[last].a, back[last].c = step.a, step.c
		} else {
			back = append(back, step)
		}
		x, y = fromX, fromY
	}
	for i, j := 0, len(back)-1; i < j; i, j = i+1, j-1 {
		back[i], back[j] = back[j], back[i]
	}
	return back
}

// slide moves lines that were only added or only removed as far down as they say the same there, which is where git shows them: so
// that both sides show the same change at the same place. Changes that then touch become one.
func slide(hunks []hunk, a, b []int32) []hunk {
	out := hunks[:0]
	for i := 0; i < len(hunks); i++ {
		h := hunks[i]
		for {
			limit := len(a)
			if i+1 < len(hunks) {
				limit = hunks[i+1].a
			}
			for h.b < limit && h.d < len(b) {
				switch {
				case h.a == h.b && b[h.c] == b[h.d]:
				case h.c == h.d && a[h.a] == a[h.b]:
				default:
					limit = h.b
					continue
				}
				h.a, h.b, h.c, h.d = h.a+1, h.b+1, h.c+1, h.d+1
			}
			if i+1 < len(hunks) && h.b == hunks[i+1].a && h.d == hunks[i+1].c {
				i++
				h.b, h.d = hunks[i].b, hunks[i].d
				continue
			}
			break
		}
		out = append(out, h)
	}
	return out
}
