// Package windows tells when recurring spans of time are open: cron expressions with a time zone and a duration. It reads
// no clock; whoever asks says what time it is.
//
// Cron itself says nothing of the days on which clocks change. Here a time of day that is skipped in spring opens when the
// clock has jumped, and one that comes twice in autumn opens the first time only. An expression with * for the hour goes
// by hours as they pass, so it opens in both of them. Durations are time that passes, not the difference on the clock.
package windows

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Schedule is a cron expression in a time zone.
type Schedule struct {
	spec *cron.SpecSchedule
	zone *time.Location
	// hourly says that every hour matches, so that hours are counted as they pass.
	hourly bool
}

// The top bit of a field of cron's says that it was written as a star.
const star = uint64(1) << 63

// parser takes the five fields of crontab(5) and names such as @daily.
func parser() cron.Parser {
	return cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)
}

// ParseSchedule reads a cron expression; the zone is the name of LoadZone.
func ParseSchedule(expression, zone string) (*Schedule, error) {
	location, err := LoadZone(zone)
	if err != nil {
		return nil, err
	}
	expression = strings.TrimSpace(expression)
	switch {
	case expression == "":
		return nil, errors.New("the expression is empty")
	case strings.Contains(expression, "TZ="):
		return nil, errors.New("a zone within the expression is not read")
	case strings.HasPrefix(expression, "@every"), strings.HasPrefix(expression, "@reboot"):
		return nil, fmt.Errorf("%q is no time of the calendar", expression)
	}
	if fields := len(strings.Fields(expression)); !strings.HasPrefix(expression, "@") && fields != 5 {
		return nil, fmt.Errorf("%d fields where five are wanted: minute, hour, day of the month, month, day of the week", fields)
	}
	parsed, err := parser().Parse(expression)
	if err != nil {
		return nil, err
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return nil, fmt.Errorf("%q is no time of the calendar", expression)
	}
	spec.Location = time.UTC
	s := &Schedule{spec: spec, zone: location, hourly: spec.Hour&star != 0}
	if s.Next(time.Date(2024, time.January, 1, 0, 0, 0, 0, time.UTC)).IsZero() { // a leap year
		return nil, errors.New("no day matches it")
	}
	return s, nil
}

// LoadZone returns the location of an IANA name; UTC for none.
func LoadZone(name string) (*time.Location, error) {
	switch name {
	case "", "UTC":
		return time.UTC, nil
	case "Local": // depends on who asks
		return nil, errors.New(`"Local" is no time zone of the IANA database`)
	}
	location, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("%q is no time zone of the IANA database", name)
	}
	return location, nil
}

// Zone is the time zone of the schedule.
func (s *Schedule) Zone() *time.Location { return s.zone }

// slack is more than clocks are ever set back or forward by.
const slack = 3 * time.Hour

// Next returns the first time after t that the schedule names; the zero time when there is none within five years.
func (s *Schedule) Next(t time.Time) time.Time {
	if s.hourly {
		spec := *s.spec
		spec.Location = s.zone
		return spec.Next(t.UTC()).In(s.zone)
	}
	// The times of the clock, as if there were nothing but a clock: it is taken for UTC, which never jumps.
	clock := wall(t.In(s.zone)).Add(-slack)
	for {
		clock = s.spec.Next(clock)
		if clock.IsZero() {
			return time.Time{}
		}
		if at := instant(clock, s.zone); at.After(t) {
			return at
		}
	}
}

// wall returns what the clock of t shows, as a time in UTC.
func wall(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// instant returns when the clock of a zone first shows what clock, a time in UTC, says; when it is set forward over that,
// the moment in which that happens.
func instant(clock time.Time, zone *time.Location) time.Time {
	at := time.Date(clock.Year(), clock.Month(), clock.Day(), clock.Hour(), clock.Minute(), clock.Second(), 0, zone)
	if !wall(at).Equal(clock) { // skipped: the clock jumps at the nearest change of its offset
		start, end := at.ZoneBounds()
		if wall(at).Before(clock) {
			return end
		}
		return start
	}
	start, _ := at.ZoneBounds()
	if start.IsZero() {
		return at
	}
	_, before := start.Add(-time.Second).Zone()
	_, offset := at.Zone()
	first := at.Add(time.Duration(offset-before) * time.Second)
	if first.Before(start) && wall(first.In(zone)).Equal(clock) {
		return first
	}
	return at
}

// farthest is how far back Last looks.
const farthest = 5 * 366 * 24 * time.Hour

// Last returns the last time up to t, and including it, that the schedule names; the zero time when there is none within
// five years.
func (s *Schedule) Last(t time.Time) time.Time {
	at := s.Next(t.Add(-farthest))
	if at.IsZero() || at.After(t) {
		return time.Time{}
	}
	// There is a time at at, and none after end. Times are whole seconds.
	for end := t; end.Sub(at) >= time.Second; {
		middle := at.Add(end.Sub(at) / 2)
		if next := s.Next(middle); next.IsZero() || next.After(t) {
			end = middle
		} else {
			at = next
		}
	}
	return at
}

// Window is a recurring span of time.
type Window struct {
	schedule *Schedule
	duration time.Duration
}

// New returns the window that opens by a schedule and stays open for a duration.
func New(schedule *Schedule, duration time.Duration) (*Window, error) {
	if duration <= 0 {
		return nil, fmt.Errorf("a duration of %s is not open at any time", duration)
	}
	return &Window{schedule: schedule, duration: duration}, nil
}

// Zone is the time zone of the window.
func (w *Window) Zone() *time.Location { return w.schedule.zone }

// Open reports whether the window is open at t: it is when it opens, and no longer when it closes.
func (w *Window) Open(t time.Time) bool {
	_, open := w.opening(t)
	return open
}

// opening returns the first of the openings that have not closed at t.
func (w *Window) opening(t time.Time) (time.Time, bool) {
	at := w.schedule.Next(t.Add(-w.duration))
	return at, !at.IsZero() && !at.After(t)
}

// maxJoined bounds how many openings that overlap are followed.
const maxJoined = 1000

// Until returns when the window that is open at t closes; the zero time when it is not open. One that opens again before it
// closes stays open; if that never ends, the time is one up to which it certainly is open.
func (w *Window) Until(t time.Time) time.Time {
	at, open := w.opening(t)
	if !open {
		return time.Time{}
	}
	end := at.Add(w.duration)
	for range maxJoined {
		at = w.schedule.Next(at)
		if at.IsZero() || at.After(end) {
			break
		}
		end = at.Add(w.duration)
	}
	return end.In(w.schedule.zone)
}

// Next returns when the window opens next after t, whether it is open now or not.
func (w *Window) Next(t time.Time) time.Time { return w.schedule.Next(t) }

// Change returns when the window closes if it is open at t, and when it opens if it is not.
func (w *Window) Change(t time.Time) time.Time {
	if until := w.Until(t); !until.IsZero() {
		return until
	}
	return w.Next(t)
}

// Daily switches between two schedules: on from each time of one to the next of the other.
type Daily struct {
	Start, Stop *Schedule
}

// On reports whether it is on at t, and since when; the time is zero when neither has come within five years.
func (d Daily) On(t time.Time) (on bool, since time.Time) {
	start, stop := d.Start.Last(t), d.Stop.Last(t)
	if start.After(stop) {
		return true, start
	}
	return false, stop
}

// Change returns when it is switched next after t.
func (d Daily) Change(t time.Time) time.Time {
	on, _ := d.On(t)
	if on {
		return d.Stop.Next(t)
	}
	return d.Start.Next(t)
}
