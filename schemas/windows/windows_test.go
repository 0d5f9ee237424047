package windows_test

import (
	"testing"
	"time"
	_ "time/tzdata" // the same zones wherever the test runs

	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/schemas/windows"
)

const (
	berlin  = "Europe/Berlin"    // 2026: forward on 29 March 02:00 -> 03:00, back on 25 October 03:00 -> 02:00
	newYork = "America/New_York" // 2026: forward on 8 March, back on 1 November at 02:00 -> 01:00
	howe    = "Australia/Lord_Howe"
)

func schedule(t testing.TB, expression, zone string) *windows.Schedule {
	t.Helper()
	s, err := windows.ParseSchedule(expression, zone)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func at(t testing.TB, s string) time.Time {
	t.Helper()
	parsed, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestNext(t *testing.T) {
	for _, test := range []struct {
		why, expression, zone, after string
		want                         []string
	}{
		{"an ordinary night", "0 2 * * 6", berlin, "2026-11-22T03:00:00+01:00", []string{"2026-11-28T02:00:00+01:00", "2026-12-05T02:00:00+01:00"}},
		{"not the time itself", "0 2 * * *", "", "2026-11-22T02:00:00Z", []string{"2026-11-23T02:00:00Z"}},
		{"a nanosecond before", "0 2 * * *", "", "2026-11-22T01:59:59.999999999Z", []string{"2026-11-22T02:00:00Z"}},
		{"skipped in spring: when the clock has jumped", "30 2 * * *", berlin, "2026-03-28T12:00:00+01:00", []string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"}},
		{"the hour that is jumped to comes once", "0,30 2,3 * * *", berlin, "2026-03-29T00:00:00+01:00", []string{"2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00", "2026-03-30T02:00:00+02:00"}},
		{"twice in autumn: the first time", "30 2 * * *", berlin, "2026-10-24T12:00:00+02:00", []string{"2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"}},
		{"asked within the hour that comes again", "30 2 * * *", berlin, "2026-10-25T02:10:00+01:00", []string{"2026-10-26T02:30:00+01:00"}},
		{"every hour counts in autumn", "30 * * * *", berlin, "2026-10-25T01:45:00+02:00", []string{"2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", "2026-10-25T03:30:00+01:00"}},
		{"every hour counts in spring", "30 * * * *", berlin, "2026-03-29T01:15:00+01:00", []string{"2026-03-29T01:30:00+01:00", "2026-03-29T03:30:00+02:00"}},
		{"west of Greenwich, spring", "15 2 * * 0", newYork, "2026-03-07T12:00:00-05:00", []string{"2026-03-08T03:00:00-04:00", "2026-03-15T02:15:00-04:00"}},
		{"west of Greenwich, autumn", "15 1 * * 0", newYork, "2026-10-31T12:00:00-04:00", []string{"2026-11-01T01:15:00-04:00", "2026-11-08T01:15:00-05:00"}},
		{"half an hour, spring", "10 2 * * *", howe, "2026-10-04T00:00:00+10:30", []string{"2026-10-04T02:30:00+11:00", "2026-10-05T02:10:00+11:00"}},
		{"half an hour, autumn", "45 1 * * *", howe, "2026-04-04T12:00:00+11:00", []string{"2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"}},
		{"midnight that does not exist", "0 0 * * *", "America/Santiago", "2026-09-05T12:00:00-04:00", []string{"2026-09-06T01:00:00-03:00", "2026-09-07T00:00:00-03:00"}},
		{"a leap day", "0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", []string{"2028-02-29T00:00:00Z"}},
		{"a name", "@weekly", "", "2026-11-22T00:00:00Z", []string{"2026-11-29T00:00:00Z"}},
	} {
		t.Run(test.why, func(t *testing.T) {
			s, now := schedule(t, test.expression, test.zone), at(t, test.after)
			for _, want := range test.want {
				now = s.Next(now)
				if got := now.Format(time.RFC3339); got != want {
					t.Fatalf("next is %s, want %s", got, want)
				}
				if last := s.Last(now.Add(time.Second)); !last.Equal(now) {
					t.Errorf("the last up to %s is %s", now, last)
				}
			}
		})
	}
}

func TestWindow(t *testing.T) {
	for _, test := range []struct {
		why, expression, zone string
		duration              time.Duration
		now                   string
		open                  bool
		until, next           string
	}{
		{"before", "0 2 * * *", "", time.Hour, "2026-11-22T01:59:59Z", false, "", "2026-11-22T02:00:00Z"},
		{"as it opens", "0 2 * * *", "", time.Hour, "2026-11-22T02:00:00Z", true, "2026-11-22T03:00:00Z", "2026-11-23T02:00:00Z"},
		{"as it closes", "0 2 * * *", "", time.Hour, "2026-11-22T03:00:00Z", false, "", "2026-11-23T02:00:00Z"},
		{"across midnight", "0 22 * * 5", berlin, 8 * time.Hour, "2026-11-21T05:00:00+01:00", true, "2026-11-21T06:00:00+01:00", "2026-11-27T22:00:00+01:00"},
		{"autumn: as long as on other days", "30 2 * * *", berlin, time.Hour, "2026-10-25T02:20:00+01:00", true, "2026-10-25T02:30:00+01:00", "2026-10-26T02:30:00+01:00"},
		{"autumn: not a second time", "30 2 * * *", berlin, time.Hour, "2026-10-25T02:40:00+01:00", false, "", "2026-10-26T02:30:00+01:00"},
		{"spring: as long as on other days", "30 2 * * *", berlin, time.Hour, "2026-03-29T03:59:00+02:00", true, "2026-03-29T04:00:00+02:00", "2026-03-30T02:30:00+02:00"},
		{"opens again before it closes", "0 2,3 * * *", "", 90 * time.Minute, "2026-11-22T02:10:00Z", true, "2026-11-22T04:30:00Z", "2026-11-22T03:00:00Z"},
	} {
		t.Run(test.why, func(t *testing.T) {
			w, err := windows.New(schedule(t, test.expression, test.zone), test.duration)
			if err != nil {
				t.Fatal(err)
			}
			now := at(t, test.now)
			until := ""
			if end := w.Until(now); !end.IsZero() {
				until = end.Format(time.RFC3339)
			}
			if open, next := w.Open(now), w.Next(now).Format(time.RFC3339); open != test.open || until != test.until || next != test.next {
				t.Errorf("open %v until %s, next %s; want %v %s %s", open, until, next, test.open, test.until, test.next)
			}
		})
	}
	always, err := windows.New(schedule(t, "* * * * *", ""), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if now := at(t, "2026-11-22T02:00:00Z"); !always.Open(now) || !always.Until(now).After(now) {
		t.Error("a window that is always open is not")
	}
}

func TestOn(t *testing.T) {
	office := windows.Daily{Start: schedule(t, "0 8 * * 1-5", berlin), Stop: schedule(t, "0 20 * * *", berlin)}
	for now, want := range map[string]struct {
		on     bool
		change string
	}{
		"2026-11-23T07:59:59+01:00": {false, "2026-11-23T08:00:00+01:00"},
		"2026-11-23T08:00:00+01:00": {true, "2026-11-23T20:00:00+01:00"},
		"2026-11-23T20:00:00+01:00": {false, "2026-11-24T08:00:00+01:00"},
		"2026-11-28T12:00:00+01:00": {false, "2026-11-30T08:00:00+01:00"}, // Saturday
	} {
		on, _ := office.On(at(t, now))
		if change := office.Change(at(t, now)).Format(time.RFC3339); on != want.on || change != want.change {
			t.Errorf("at %s on is %v until %s, want %v %s", now, on, change, want.on, want.change)
		}
	}
}

// TestLast: however many times there are, and however long ago the last one was.
func TestLast(t *testing.T) {
	now := at(t, "2027-01-25T12:00:30Z")
	for expression, want := range map[string]string{
		"* 0-23 * 2 *":  "2026-02-28T23:59:00Z",
		"0 0 29 2 *":    "2024-02-29T00:00:00Z",
		"* * * * *":     "2027-01-25T12:00:00Z",
		"0 12 25 1 *":   "2027-01-25T12:00:00Z",
		"1 12 25 1 *":   "2026-01-25T12:01:00Z",
		"59 23 31 12 *": "2026-12-31T23:59:00Z",
	} {
		if got := schedule(t, expression, "").Last(now).Format(time.RFC3339); got != want {
			t.Errorf("%s: %s, want %s", expression, got, want)
		}
	}
}

func TestMistakes(t *testing.T) {
	for expression, want := range map[string]string{
		"":                 "the expression is empty",
		"0 2 * *":          "4 fields where five are wanted: minute, hour, day of the month, month, day of the week",
		"0 0 2 * * 6":      "6 fields where five are wanted: minute, hour, day of the month, month, day of the week",
		"0 25 * * *":       "end of range (25) above maximum (23): 25",
		"TZ=UTC 0 2 * * *": "a zone within the expression is not read",
		"TZ=":              "a zone within the expression is not read",
		"@every 1h":        `"@every 1h" is no time of the calendar`,
		"0 0 30 2 *":       "no day matches it",
		"0 2 * * Sat-Mon":  "beginning of range (6) beyond end of range (1): Sat-Mon",
	} {
		if _, err := windows.ParseSchedule(expression, ""); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", expression, err, want)
		}
	}
	for _, zone := range []string{"Local", "Berlin", "../etc/passwd"} {
		if _, err := windows.ParseSchedule("0 2 * * *", zone); err == nil {
			t.Errorf("the zone %s is taken", zone)
		}
	}
	if _, err := windows.New(schedule(t, "0 2 * * *", ""), 0); err == nil {
		t.Error("a window of no duration is taken")
	}
}

// TestConsistent holds what the functions say against one another at any time of any zone with daylight saving.
func TestConsistent(t *testing.T) {
	expressions := []string{"0 2 * * *", "30 2 * * 0", "30 1 * * *", "*/20 1-3 * * *", "0 * * * *", "15 */2 * * *", "0 0 * * *", "45 23 1 * *", "* 0-23 * 2 *", "0 0 29 2 *"}
	zones := []string{"", berlin, newYork, howe, "America/Santiago", "Africa/Cairo", "Europe/London"}
	rapid.Check(t, func(r *rapid.T) {
		s := schedule(t, rapid.SampledFrom(expressions).Draw(r, "expression"), rapid.SampledFrom(zones).Draw(r, "zone"))
		w, err := windows.New(s, time.Duration(rapid.IntRange(1, 50).Draw(r, "minutes"))*time.Minute)
		if err != nil {
			r.Fatal(err)
		}
		year := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		now := year.Add(time.Duration(rapid.Int64Range(0, 366*24*3600).Draw(r, "second")) * time.Second)
		next, last := s.Next(now), s.Last(now)
		if !next.After(now) || last.After(now) || s.Next(last).Before(next) {
			r.Fatalf("at %s: last %s, next %s", now, last, next)
		}
		change := w.Change(now)
		if !change.After(now) || w.Open(change) == w.Open(now) || w.Open(change.Add(-time.Second)) != w.Open(now) {
			r.Fatalf("at %s open is %v, and it changes at %s", now, w.Open(now), change)
		}
	})
}

func BenchmarkChange(b *testing.B) {
	w, err := windows.New(schedule(b, "0 2 * * 6", berlin), 4*time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	now := at(b, "2026-11-22T12:00:00Z")
	for b.Loop() {
		w.Change(now)
	}
}
