package forgetest

import (
	"testing"

	"github.com/gitvirt/gitvirt/forges"
)

// OneComment is the one comment of an account on a pull request, as a client sees it; the zero value where there is none. Two fail the test.
func OneComment(t testing.TB, client forges.Forge, number int, account string) forges.Comment {
	t.Helper()
	comments, err := client.Comments(t.Context(), number)
	if err != nil {
		t.Fatal(err)
	}
	var found []forges.Comment
	for _, comment := range comments {
		if comment.Author == account {
			found = append(found, comment)
		}
	}
	switch len(found) {
	case 0:
		return forges.Comment{}
	case 1:
		return found[0]
	}
	t.Fatalf("pull request %d has %d comments of %s", number, len(found), account)
	return forges.Comment{}
}
