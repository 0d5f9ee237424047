package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// controllerUser is who the controller is for the API server.
const controllerUser = "system:serviceaccount:gitvirt-system:gitvirt-controller"

// requests are how many requests there were, by user and by what was asked for. A watch is counted when it begins.
type requests map[string]map[string]int

// of is how many a user made.
func (r requests) of(user string) int {
	sum := 0
	for _, count := range r[user] {
		sum += count
	}
	return sum
}

// list says what a user asked for, the most frequent first.
func (r requests) list(user string) string {
	kinds := slices.SortedFunc(maps.Keys(r[user]), func(a, b string) int {
		if d := r[user][b] - r[user][a]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	for i, kind := range kinds {
		kinds[i] = fmt.Sprintf("%d %s", r[user][kind], kind)
	}
	return strings.Join(kinds, ", ")
}

// audit reads the API server's log from where it was read last.
type audit struct {
	path   string
	offset int64
}

// since returns what was asked for since the last time.
func (a *audit) since() (found requests, err error) {
	file, err := os.Open(a.path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	if _, err := file.Seek(a.offset, 0); err != nil {
		return nil, err
	}
	found = requests{}
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return found, nil // what is not a line yet is for the next time
		}
		a.offset += int64(len(line))
		var event struct {
			Stage, Verb string
			User        struct{ Username string }
			ObjectRef   struct{ Resource, Subresource string }
		}
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("reading %s: %w", a.path, err)
		}
		kind := event.Verb + " " + event.ObjectRef.Resource
		if event.ObjectRef.Subresource != "" {
			kind += "/" + event.ObjectRef.Subresource
		}
		// What takes long is told of when it begins and when it ends.
		if (event.Verb == "watch") != (event.Stage == "ResponseStarted") {
			continue
		}
		if found[event.User.Username] == nil {
			found[event.User.Username] = map[string]int{}
		}
		found[event.User.Username][kind]++
	}
}
