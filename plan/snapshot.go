package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// LiveFormat is what the first field of a kept Live says, LiveVersion its version: the major part changes when older readers would
// misunderstand it.
const (
	LiveFormat  = "gitvirt-live"
	LiveVersion = "1.0"
)

// Live is what lived on a host or in a cluster at a time, kept for plans that are made elsewhere: whoever has it needs no way there, and can do
// nothing there. Sensitive values are not in it, because they are in no Observed.
type Live struct {
	Format  string `json:"format"`
	Version string `json:"version"`
	// Time is when it was read.
	Time     time.Time `json:"time"`
	Observed Observed  `json:"observed"`
	// Pods says how machines become Pods there, as the platform writes it; empty on a libvirt host.
	Pods json.RawMessage `json:"pods,omitempty"`
}

// ErrNoLive says that content is no Live at all.
var ErrNoLive = errors.New("it was not written by gitvirt snapshot")

// NewLive returns what lives as it is kept. pods is nil for a libvirt host. What could not be read is an error.
func NewLive(observed Observed, pods Pods, now time.Time) (*Live, error) {
	if observed.Unknown != "" {
		return nil, fmt.Errorf("what lives cannot be read: %s", observed.Unknown)
	}
	live := &Live{Format: LiveFormat, Version: LiveVersion, Time: now.UTC().Truncate(time.Second), Observed: observed}
	if pods != nil {
		encoded, err := json.Marshal(pods)
		if err != nil {
			return nil, fmt.Errorf("encoding what lives: %w", err)
		}
		live.Pods = encoded
	}
	return live, nil
}

// DecodeLive reads a Live. What is not one is an ErrNoLive; what is damaged or of a newer format is another error that says so.
func DecodeLive(content []byte) (*Live, error) {
	var head struct{ Format, Version string }
	if err := json.Unmarshal(content, &head); err != nil {
		return nil, fmt.Errorf("%w, or it is damaged (%w); write it again", ErrNoLive, err)
	}
	if head.Format != LiveFormat {
		return nil, ErrNoLive
	}
	if major(head.Version) != major(LiveVersion) {
		return nil, fmt.Errorf("it has the format %s, and this gitvirt reads %s; write it again with this gitvirt", head.Version, LiveVersion)
	}
	live := new(Live)
	if err := json.Unmarshal(content, live); err != nil {
		return nil, fmt.Errorf("it cannot be understood (%w); write it again with this gitvirt", err)
	}
	return live, nil
}
