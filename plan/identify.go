package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/gitvirt/gitvirt/schemas"
)

// idBytes is how much of a hash an ID has: 128 bits, because approvals are bound to them.
const idBytes = 16

func idOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:idBytes])
}

// identify sets the IDs of the steps and of the plan from everything that decides what is carried out. What a step waits
// for is not part of its ID, because an approval would otherwise change what it approves, nor what blocks it, nor how it is
// told: a line that moves in a manifest is not another step.
func (p *Plan) identify() error {
	whole := fmt.Appendf(nil, "%s\x00%s\x00%s\x00%s\x00%s\x00%s\x00", p.FormatVersion, p.Fleet, p.Revision, p.Base, p.Unknown, p.Policy)
	if p.Partial != nil {
		whole = fmt.Appendf(whole, "%q\x00%q\x00", p.Partial.Targets, p.Partial.Excludes)
	}
	whole = slices.Grow(whole, len(p.Steps)*(2*idBytes+1))
	var content []byte
	for i := range p.Steps {
		step := &p.Steps[i]
		var err error
		if content, err = step.appendContent(content[:0]); err != nil {
			return fmt.Errorf("hashing the step of %s: %w", step.Address, err)
		}
		content = append(append(content, 0), p.Fleet...)
		if step.VM != nil {
			content = append(append(content, 0), step.VM.Hash...)
		}
		if step.Object != nil {
			content = append(append(content, "\x00object "...), step.Object.Hash...)
		}
		if step.Recurs() {
			content = append(append(content, 0), cmp.Or(step.Revision, p.Revision)...)
		}
		step.ID = idOf(content)
		whole = append(append(whole, step.ID...), 0)
	}
	p.ID = idOf(whole)
	return nil
}

// Recurs reports whether the same step may be needed again although no commit was applied to the machine in between: it comes
// back after it was removed, is undefined again, or crashes again. It is then a step of its revision, so that what was approved
// of it is not approved for ever, nor at the commit that a merge makes.
func (s *Step) Recurs() bool {
	return s.Precondition == "" || s.Action == ActionCreate || s.Action == ActionStart
}

// appendContent appends everything that the step does, in a form that is different for different steps.
func (s *Step) appendContent(buf []byte) ([]byte, error) {
	buf = appendAddress(buf, &s.Address)
	for _, text := range []string{
		string(s.Action), string(s.Reason), string(s.Consequence), s.Domain, s.Adopt, string(s.Power), s.Precondition,
	} {
		buf = appendText(buf, text)
	}
	for _, list := range [][]string{s.Kept, s.DataAtRisk, s.Keeps} {
		buf = appendTexts(buf, list)
	}
	if pending := s.PendingRestart; pending != nil {
		buf = strconv.AppendInt(appendTexts(buf, pending.Fields), pending.Since.Unix(), 10)
	}
	if pod := s.Pod; pod != nil {
		buf = strconv.AppendBool(appendText(buf, pod.Name), pod.New)
	}
	buf = append(buf, '|')
	for i := range s.DependsOn {
		buf = appendReady(appendAddress(buf, &s.DependsOn[i].Address), s.DependsOn[i].Ready)
	}
	buf = append(buf, '|')
	if s.Previous != nil {
		buf = appendAddress(buf, s.Previous)
	}
	buf = appendReady(append(buf, '|'), s.Ready)
	buf = append(strconv.AppendInt(buf, s.DowntimeSeconds, 10), '|')
	buf = append(strconv.AppendInt(buf, s.GraceSeconds, 10), '|')
	buf = strconv.AppendBool(strconv.AppendBool(buf, s.Live), s.Define)
	var err error
	for _, changes := range [][]Change{s.Changes, s.Drift, s.RunningDrift} {
		if buf, err = appendChanges(buf, changes); err != nil {
			return nil, err
		}
	}
	return buf, nil
}

func appendAddress(buf []byte, a *schemas.Address) []byte {
	return appendText(appendText(appendText(buf, a.Kind), a.Namespace), a.Name)
}

func appendReady(buf []byte, ready schemas.Ready) []byte {
	return append(strconv.AppendInt(appendText(buf, string(ready.Kind)), int64(ready.Port), 10), '|')
}

func appendTexts(buf []byte, texts []string) []byte {
	buf = append(strconv.AppendInt(buf, int64(len(texts)), 10), '[')
	for _, text := range texts {
		buf = appendText(buf, text)
	}
	return append(buf, ']')
}

// appendChanges appends changes in a form that is different for different ones.
func appendChanges(buf []byte, changes []Change) ([]byte, error) {
	buf = append(buf, '[')
	var err error
	for i := range changes {
		c := &changes[i]
		buf = appendText(buf, c.Path)
		for _, value := range []any{c.Before, c.After} {
			if buf, err = appendValue(buf, value); err != nil {
				return nil, err
			}
		}
		buf = appendText(strconv.AppendBool(buf, c.Sensitive), string(c.Consequence))
		buf = appendText(buf, c.Note)
	}
	return append(buf, ']'), nil
}

// appendText appends text after its length.
func appendText(buf []byte, text string) []byte {
	return append(append(strconv.AppendInt(buf, int64(len(text)), 10), ':'), text...)
}

// appendValue appends a JSON value, with what kind it is of.
func appendValue(buf []byte, value any) ([]byte, error) {
	var err error
	switch v := value.(type) {
	case nil:
		return append(buf, 'n'), nil
	case bool:
		return strconv.AppendBool(buf, v), nil
	case string:
		return appendText(append(buf, 's'), v), nil
	case float64:
		return append(strconv.AppendUint(append(buf, 'f'), math.Float64bits(v), 16), '|'), nil
	case []any:
		buf = append(buf, '[')
		for _, element := range v {
			if buf, err = appendValue(buf, element); err != nil {
				return nil, err
			}
		}
		return append(buf, ']'), nil
	case map[string]any:
		buf = append(buf, '{')
		var few [8]string
		for _, key := range sortedKeys(few[:0], v) {
			if buf, err = appendValue(appendText(buf, key), v[key]); err != nil {
				return nil, err
			}
		}
		return append(buf, '}'), nil
	}
	encoded, err := json.Marshal(value)
	return append(append(buf, 'j'), encoded...), err
}
