package conformance

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/forges"
)

func bodies(list []forges.Comment) []string {
	var result []string
	for _, c := range list {
		result = append(result, c.Author+": "+c.Body)
	}
	return result
}

func comments(t *testing.T, w *shared) {
	f := w.Forge(t)
	number, _ := w.branch(t)
	other, _ := w.fork(t)
	for _, n := range []int{number, other} {
		if got := read(t, f, n, nil); len(got) != 0 {
			t.Errorf("a new pull request has the comments %v", bodies(got))
		}
	}
	markdown := "<!-- gitvirt:plan:shop -->\n## " + unicodeText + "\n\n| a | b |\n|---|---|\n| `x` | \\| |\n\n<details><summary>vm/web</summary>\n\n```diff\n- 1\n+ 2\n```\n\n</details>\n"
	theirs := w.Comment(t, number, "ann", "please look")
	mine := must[int64](t)(f.Comment(t.Context(), number, markdown))
	last := w.Comment(t, number, "ben", "/gitvirt plan")
	got := read(t, f, number, nil)
	if len(got) != 3 || got[0].ID != theirs || got[1].ID != mine || got[2].ID != last {
		t.Fatalf("the comments are %+v, want %d, %d, %d", got, theirs, mine, last)
	}
	for i, want := range []forges.Comment{{Author: "ann", Body: "please look"}, {Author: w.Account(), Body: markdown}, {Author: "ben", Body: "/gitvirt plan"}} {
		if got[i].Author != want.Author || got[i].Body != want.Body {
			t.Errorf("comment %d: %q by %q, want %q by %q", i, got[i].Body, got[i].Author, want.Body, want.Author)
		}
		if got[i].Created.IsZero() || got[i].Updated.Before(got[i].Created) || got[i].Updated.Sub(got[i].Created) > time.Second {
			t.Errorf("comment %d was written at %s and edited at %s", i, got[i].Created, got[i].Updated)
		}
	}

	w.NextSecond(t)
	if err := f.EditComment(t.Context(), number, mine, "shorter 🚀"); err != nil {
		t.Fatal(err)
	}
	edited := read(t, f, number, nil)
	if len(edited) != 3 || edited[1].ID != mine || edited[1].Body != "shorter 🚀" || !edited[1].Updated.After(got[1].Updated) || !edited[1].Created.Equal(got[1].Created) {
		t.Errorf("edited:\n%+v, before\n%+v", edited, got)
	}
	if got := read(t, f, other, nil); len(got) != 0 {
		t.Errorf("another pull request has the comments %v", bodies(got))
	}
	for range 2 {
		if err := f.DeleteComment(t.Context(), number, mine); err != nil {
			t.Fatal(err)
		}
	}
	if got := bodies(read(t, f, number, nil)); fmt.Sprint(got) != "[ann: please look ben: /gitvirt plan]" {
		t.Errorf("after the deletion there are %q", got)
	}

	if err := f.EditComment(t.Context(), number, mine, "gone"); !errors.Is(err, forges.ErrNotFound) {
		t.Errorf("editing what is gone: %v", err)
	}
	if _, err := f.Comment(t.Context(), 987654, "hello"); !errors.Is(err, forges.ErrNotFound) {
		t.Errorf("commenting on what is not there: %v", err)
	}
	if _, err := f.Comments(t.Context(), 987654); !errors.Is(err, forges.ErrNotFound) {
		t.Errorf("reading comments of what is not there: %v", err)
	}
	if _, err := f.Comment(t.Context(), number, " \n"); !errors.Is(err, forges.ErrRefused) {
		t.Errorf("an empty comment: %v", err)
	}

	// Those who have merged or closed it may talk on, and so may we.
	w.Close(t, number)
	if _, err := f.Comment(t.Context(), number, "closed"); err != nil {
		t.Errorf("commenting on a closed one: %v", err)
	}
	w.Reopen(t, number)
}

func commentsOverPages(t *testing.T, w *shared) {
	f := w.Forge(t)
	number, _ := w.branch(t)
	before := read(t, f, number, nil)
	count := w.PageSize() + 2
	for i := range count {
		w.Comment(t, number, "ann", fmt.Sprint("comment ", i))
	}
	got := read(t, f, number, before)
	if len(got) != count {
		t.Fatalf("%d of %d comments", len(got), count)
	}
	for i, c := range got {
		if want := fmt.Sprint("comment ", i); c.Body != want {
			t.Fatalf("comment %d is %q, want %q", i, c.Body, want)
		}
	}
}

func commentsAtTheLimit(t *testing.T, w *shared) {
	f := w.Forge(t)
	number, _ := w.fork(t)
	before := read(t, f, number, nil)
	limit := f.CommentLimit()
	bytes := strings.Repeat("x", limit)
	characters := strings.Repeat("数", limit/3) // as many bytes
	id := must[int64](t)(f.Comment(t.Context(), number, bytes))
	text := func() string {
		t.Helper()
		return read(t, f, number, before)[0].Body
	}
	if got := text(); got != bytes {
		t.Errorf("of %d bytes %d are there", len(bytes), len(got))
	}
	if err := f.EditComment(t.Context(), number, id, characters); err != nil {
		t.Fatal(err)
	}
	if got := text(); got != characters {
		t.Errorf("of %d bytes in long characters %d are there", len(characters), len(got))
	}
	if _, err := f.Comment(t.Context(), number, bytes+"x"); !errors.Is(err, forges.ErrRefused) {
		t.Errorf("one more: %v", err)
	}
	if err := f.EditComment(t.Context(), number, id, bytes+"x"); !errors.Is(err, forges.ErrRefused) {
		t.Errorf("one more, edited: %v", err)
	}
	if got := text(); got != characters {
		t.Error("a refused edit has changed the comment")
	}
	if err := f.DeleteComment(t.Context(), number, id); err != nil {
		t.Error(err)
	}
}
