// Package rules checks and evaluates a team's own rules, which are expressions in CEL (https://cel.dev) over a machine and
// what a plan would do to it. Evaluating one reads nothing but its arguments, and what it may cost is bounded.
package rules

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/ext"
)

// The bounds of an expression. Costs are CEL's: about one for each operation.
const (
	maxLength = 4096
	// maxEstimate bounds what an expression may cost at worst, for machines with lists of up to estimatedItems.
	maxEstimate    = 1_000_000
	estimatedItems = 64
	estimatedText  = 1024
	// maxCost bounds what it does cost for one machine.
	maxCost = 100_000
)

// Rule is an expression that was checked.
type Rule struct {
	program cel.Program
}

// Machine is a machine as expressions see it.
type Machine struct {
	Kind, Namespace, Name string
	Labels, Annotations   map[string]string
	// Spec is the spec of the manifest, read as JSON; nil for none. It is asked for when an expression needs it.
	Spec func() map[string]any
}

// Change is one field that changes.
type Change struct {
	Path, Consequence string
	// Before and After are JSON values; nil for none, and for what is sensitive.
	Before, After any
}

// Step is what would happen to the machine.
type Step struct {
	Action, Reason, Consequence, Power string
	Changes, Drift                     []Change
	DataAtRisk, Keeps                  []string
	DowntimeSeconds                    int64
	Live                               bool
}

// Input is what expressions are about.
type Input struct {
	Object *Machine
	// Before is what was applied last; it returns nil for a machine that is new. It is asked when an expression needs it.
	Before func() *Machine
	Step   *Step
}

// Problem is what is wrong with an expression.
type Problem struct {
	// Line and Column count from 1, within the expression.
	Line, Column int
	Message      string
}

// Error returns the message with its place, when the expression has more than one line or the place is not its beginning.
func (p *Problem) Error() string {
	switch {
	case p.Line > 1:
		return fmt.Sprintf("%s (line %d, column %d)", p.Message, p.Line, p.Column)
	case p.Column > 1:
		return fmt.Sprintf("%s (column %d)", p.Message, p.Column)
	}
	return p.Message
}

// environment has what all rules share. Making it takes milliseconds, so it is made once, when there is a rule.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return speakingOf(cel.Variable("object", machineType), cel.Variable("before", machineType), cel.Variable("step", stepType))
})

// speakingOf makes an environment with variables.
func speakingOf(variables ...cel.EnvOption) (*cel.Env, error) {
	base, err := cel.NewEnv(
		cel.OptionalTypes(), ext.Strings(), ext.Sets(),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
	)
	if err != nil {
		return nil, err
	}
	return base.Extend(append(variables, cel.CustomTypeProvider(declared{base.CELTypeProvider()}))...)
}

// Compile checks an expression: its syntax, the names and types in it, and what it may cost at worst.
func Compile(expression string) (*Rule, *Problem) {
	return compile(environment, expression, "rule")
}

// compile checks an expression in an environment; kind is what people call it.
func compile(environment func() (*cel.Env, error), expression, kind string) (*Rule, *Problem) {
	if len(expression) > maxLength {
		return nil, &Problem{Line: 1, Column: 1, Message: fmt.Sprintf("the expression has %d characters, at most %d are allowed", len(expression), maxLength)}
	}
	if strings.TrimSpace(expression) == "" {
		return nil, &Problem{Line: 1, Column: 1, Message: "the expression is empty"}
	}
	env, err := environment()
	if err != nil {
		return nil, &Problem{Line: 1, Column: 1, Message: err.Error()}
	}
	checked, issues := env.Compile(expression)
	if problem := firstProblem(issues); problem != nil {
		return nil, problem
	}
	if problem := unbounded(checked.NativeRep(), kind); problem != nil {
		return nil, problem
	}
	if checked.OutputType() != cel.BoolType {
		return nil, &Problem{Line: 1, Column: 1, Message: fmt.Sprintf("the expression is %s, and a %s is true or false", article(checked.OutputType().String()), kind)}
	}
	estimate, err := env.EstimateCost(checked, estimator{})
	if err != nil {
		return nil, &Problem{Line: 1, Column: 1, Message: err.Error()}
	}
	if estimate.Max > maxEstimate {
		cost := "has no bound"
		if estimate.Max < math.MaxInt64 {
			cost = fmt.Sprintf("is up to %d", estimate.Max)
		}
		return nil, &Problem{Line: 1, Column: 1, Message: fmt.Sprintf("the expression may take too long: its cost %s, at most %d is allowed", cost, maxEstimate)}
	}
	program, err := env.Program(checked, cel.CostLimit(maxCost), cel.CostTracking(tracker{}), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, &Problem{Line: 1, Column: 1, Message: err.Error()}
	}
	return &Rule{program: program}, nil
}

// growing are functions whose one call may make a text of any length out of two that are long: what that costs would be known
// when the memory is gone.
var growing = []string{"format", "join", "replace"} //nolint:gochecknoglobals // a constant

// unbounded returns the first call of a function that grows texts.
func unbounded(tree *ast.AST, kind string) *Problem {
	var found *Problem
	ast.PreOrderVisit(tree.Expr(), ast.NewExprVisitor(func(expression ast.Expr) {
		if found != nil || expression.Kind() != ast.CallKind || !slices.Contains(growing, expression.AsCall().FunctionName()) {
			return
		}
		at := tree.SourceInfo().GetStartLocation(expression.ID())
		found = &Problem{
			Line: max(1, at.Line()), Column: at.Column() + 1,
			Message: fmt.Sprintf("%ss have no %q: there is no bound to what it makes", kind, expression.AsCall().FunctionName()),
		}
	}))
	return found
}

// firstProblem is the first mistake that CEL found, in one line.
func firstProblem(issues *cel.Issues) *Problem {
	if issues.Err() == nil {
		return nil
	}
	found := issues.Errors()
	if len(found) == 0 {
		return &Problem{Line: 1, Column: 1, Message: issues.Err().Error()}
	}
	first := found[0]
	message := strings.TrimPrefix(strings.Join(strings.Fields(first.Message), " "), "Syntax error: ")
	return &Problem{Line: max(1, first.Location.Line()), Column: first.Location.Column() + 1, Message: message}
}

func article(typeName string) string {
	if strings.ContainsAny(typeName[:1], "aeiou") {
		return "an " + typeName
	}
	return "a " + typeName
}

// Holds reports whether the rule is true. An error says why it could not be found out, which includes that it cost too
// much; it never holds a value of the machine.
func (r *Rule) Holds(input *Arguments) (bool, error) {
	out, _, err := r.program.Eval(input.values)
	if err != nil {
		return false, explain(err)
	}
	holds, ok := out.(types.Bool)
	if !ok {
		return false, errors.New("the expression is neither true nor false")
	}
	return bool(holds), nil
}

// explain keeps of an error of CEL what cannot quote the machine: conversions that fail do.
func explain(err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "cost limit exceeded"):
		return fmt.Errorf("it takes too long: its cost is over %d", maxCost)
	case strings.HasPrefix(text, "no such key"), strings.HasPrefix(text, "no such field"), strings.HasPrefix(text, "no such overload"), text == errNew:
		return errors.New(text)
	}
	cause, _, _ := strings.Cut(text, ":")
	return errors.New(cause)
}

// Arguments are an Input as CEL takes it; they may be used for many rules.
type Arguments struct {
	values map[string]any
}

// Prepare turns an input into arguments.
func Prepare(input *Input) *Arguments {
	values := map[string]any{
		"object": sync.OnceValue(func() any { return input.Object.value() }),
		"before": sync.OnceValue(func() any {
			if before := input.Before(); before != nil {
				return before.value()
			}
			return types.NullValue
		}),
		"step": sync.OnceValue(func() any { return input.Step.value() }),
	}
	return &Arguments{values: values}
}

const errNew = "the machine is new: before is null"

func (m *Machine) value() map[string]any {
	spec := sync.OnceValue(func() map[string]any {
		if m.Spec != nil {
			if read := m.Spec(); read != nil {
				return read
			}
		}
		return map[string]any{}
	})
	return map[string]any{
		"kind": m.Kind, "spec": spec,
		"metadata": map[string]any{
			"name": m.Name, "namespace": m.Namespace, "labels": orEmpty(m.Labels), "annotations": orEmpty(m.Annotations),
		},
	}
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

func (s *Step) value() map[string]any {
	return map[string]any{
		"action": s.Action, "reason": s.Reason, "consequence": s.Consequence, "power": s.Power, "live": s.Live,
		"downtimeSeconds": s.DowntimeSeconds, "dataAtRisk": orNone(s.DataAtRisk), "keeps": orNone(s.Keeps),
		"changes": changes(s.Changes), "drift": changes(s.Drift),
	}
}

func orNone(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

func changes(list []Change) []any {
	out := make([]any, len(list))
	for i, change := range list {
		out[i] = map[string]any{"path": change.Path, "consequence": change.Consequence, "before": change.Before, "after": change.After}
	}
	return out
}

// The types of what expressions are about. Values are maps; the types make misspelt fields mistakes of the expression.
var (
	machineType  = types.NewObjectType("gitvirt.Machine")
	metadataType = types.NewObjectType("gitvirt.Metadata")
	stepType     = types.NewObjectType("gitvirt.Step")
	changeType   = types.NewObjectType("gitvirt.Change")
)

// fieldTypes has the fields of each type.
var fieldTypes = sync.OnceValue(func() map[string]map[string]*types.Type {
	text, texts := types.NewMapType(types.StringType, types.StringType), types.NewListType(types.StringType)
	return map[string]map[string]*types.Type{
		machineType.TypeName(): {
			"kind": types.StringType, "metadata": metadataType, "spec": types.NewMapType(types.StringType, types.DynType),
		},
		metadataType.TypeName(): {"name": types.StringType, "namespace": types.StringType, "labels": text, "annotations": text},
		stepType.TypeName(): {
			"action": types.StringType, "reason": types.StringType, "consequence": types.StringType, "power": types.StringType,
			"live": types.BoolType, "downtimeSeconds": types.IntType, "dataAtRisk": texts, "keeps": texts,
			"changes": types.NewListType(changeType), "drift": types.NewListType(changeType),
		},
		eventType.TypeName():  eventFields(),
		changeType.TypeName(): {"path": types.StringType, "consequence": types.StringType, "before": types.DynType, "after": types.DynType},
	}
})

// declared adds the types to those that CEL has.
type declared struct{ types.Provider }

// FindStructType finds a type by name.
func (d declared) FindStructType(name string) (*types.Type, bool) {
	if _, ok := fieldTypes()[name]; ok {
		return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
	}
	return d.Provider.FindStructType(name)
}

// FindStructFieldNames lists the fields of a type.
func (d declared) FindStructFieldNames(name string) ([]string, bool) {
	fields, ok := fieldTypes()[name]
	if !ok {
		return d.Provider.FindStructFieldNames(name)
	}
	names := make([]string, 0, len(fields))
	for field := range fields {
		names = append(names, field)
	}
	return names, true
}

// FindStructFieldType finds a field of a type.
func (d declared) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	fields, ok := fieldTypes()[name]
	if !ok {
		return d.Provider.FindStructFieldType(name, field)
	}
	fieldType, ok := fields[field]
	if !ok {
		return nil, false
	}
	get := func(target any) (any, error) {
		if value, ok := target.(ref.Val); ok {
			target = value.Value()
		}
		m, ok := target.(map[string]any)
		if !ok {
			return nil, errors.New(errNew)
		}
		if later, ok := m[field].(func() map[string]any); ok {
			return later(), nil
		}
		return m[field], nil
	}
	isSet := func(target any) bool {
		value, err := get(target)
		return err == nil && value != nil
	}
	return &types.FieldType{Type: fieldType, IsSet: isSet, GetFrom: get}, true
}

// NewValue refuses to make a machine or a step within an expression.
func (d declared) NewValue(name string, fields map[string]ref.Val) ref.Val {
	if _, ok := fieldTypes()[name]; ok {
		return types.NewErr("a rule cannot make a %s", name)
	}
	return d.Provider.NewValue(name, fields)
}
