package plan

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"
)

// TestValuesAreWrittenAsJSON: appendJSON writes what encoding/json does.
func TestValuesAreWrittenAsJSON(t *testing.T) {
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		kinds := []*rapid.Generator[any]{
			rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Float64().AsAny(), rapid.IntRange(-5, 1<<53).AsAny(), rapid.String().AsAny(),
			rapid.SampledFrom([]string{"", "plain", "<&>", "\"\\", "\u2028", "\xff"}).AsAny(), rapid.Map(rapid.IntRange(-9, 1<<53), func(n int) float64 { return float64(n) }).AsAny(),
		}
		if depth > 0 {
			kinds = append(kinds, rapid.SliceOfN(value(depth-1), 0, 3).AsAny(), rapid.MapOfN(rapid.String(), value(depth-1), 0, 12).AsAny())
		}
		return rapid.OneOf(kinds...)
	}
	rapid.Check(t, func(t *rapid.T) {
		v := value(2).Draw(t, "value")
		want, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(appendJSON(nil, v)); got != string(want) {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}
