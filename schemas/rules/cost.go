package rules

import (
	"slices"

	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// reading are the functions on texts that CEL's library counts as one operation, however long the texts are.
var reading = []string{"charAt", "indexOf", "lastIndexOf", "lowerAscii", "reverse", "split", "strings.quote", "substring", "trim", "upperAscii"} //nolint:gochecknoglobals // a constant

// perText is how many characters of a text cost one, as in CEL's own functions.
const perText = 10

// estimator says how long lists and texts are at most, for the estimate of what an expression costs.
type estimator struct{}

// EstimateSize bounds what CEL cannot see.
func (estimator) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	most := uint64(estimatedItems)
	if kind := element.Type().Kind(); kind == types.StringKind || kind == types.BytesKind {
		most = estimatedText
	}
	return &checker.SizeEstimate{Min: 0, Max: most}
}

// EstimateCallCost leaves most functions to CEL.
func (estimator) EstimateCallCost(function, _ string, _ *checker.AstNode, _ []checker.AstNode) *checker.CallEstimate {
	if !slices.Contains(reading, function) {
		return nil
	}
	return &checker.CallEstimate{CostEstimate: checker.CostEstimate{Min: 1, Max: 1 + estimatedText/perText}}
}

// tracker counts what an expression costs while it is evaluated.
type tracker struct{}

// CallCost leaves most functions to CEL.
func (tracker) CallCost(function, _ string, args []ref.Val, _ ref.Val) *uint64 {
	if !slices.Contains(reading, function) {
		return nil
	}
	cost := uint64(1)
	for _, arg := range args {
		if text, ok := arg.(types.String); ok {
			cost += uint64(len(text)) / perText
		}
	}
	return &cost
}
