package io.djltp.llm;

import io.djltp.llm.JinjaTemplate.Arguments;
import io.djltp.llm.JinjaTemplate.Expression;
import io.djltp.llm.JinjaTemplate.Flow;
import io.djltp.llm.JinjaTemplate.Function;
import io.djltp.llm.JinjaTemplate.Namespace;
import io.djltp.llm.JinjaTemplate.Node;
import io.djltp.llm.JinjaTemplate.Scope;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Reads a {@link JinjaTemplate}: first its tokens, then its statements and expressions. */
final class JinjaParser {

    private static final Pattern BEGIN = Pattern.compile("\\{[{%#]");
    private static final Pattern TOKEN =
            Pattern.compile(
                    "(?<name>[\\p{L}_][\\p{L}\\p{N}_]*)|(?<number>\\d+(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)"
                            + "|(?<string>['\"])"
                            + "|(?<operator>//|==|!=|<=|>=|[-+*/%~\\[\\](){}.,:=<>|])");
    private static final Pattern ESCAPE =
            Pattern.compile("\\\\(?:x(\\p{XDigit}{2})|u(\\p{XDigit}{4})|(.))", Pattern.DOTALL);
    private static final Set<String> COMPARISONS = Set.of("==", "!=", "<", "<=", ">", ">=");

    private final List<Token> tokens = new ArrayList<>();
    private final String source;
    private int at;
    private int line = 1;
    private int counted; // the lines up to here

    private enum Kind {
        TEXT,
        BEGIN,
        END,
        NAME,
        NUMBER,
        STRING,
        OPERATOR,
        NOTHING
    }

    private record Token(Kind kind, String text, int line) {

        boolean is(Kind other, String value) {
            return kind == other && text.equals(value);
        }
    }

    JinjaParser(String source) {
        String lines = source.replace("\r\n", "\n").replace('\r', '\n');
        this.source = lines.endsWith("\n") ? lines.substring(0, lines.length() - 1) : lines;
    }

    Node parse() {
        split();
        return body();
    }

    /** Returns the line of the token that was read last. */
    int line() {
        return tokens.isEmpty() ? 1 : tokens.get(Math.min(at, tokens.size() - 1)).line;
    }

    private static IllegalArgumentException error(String message, Object... values) {
        return new IllegalArgumentException(message.formatted(values));
    }

    // ---- tokens

    private void add(Kind kind, String text, int place) {
        line += (int) source.substring(counted, place).chars().filter(c -> c == '\n').count();
        counted = place;
        tokens.add(new Token(kind, text, line));
        at = tokens.size() - 1;
    }

    private void split() {
        Matcher begin = BEGIN.matcher(source);
        int place = 0;
        while (begin.find(place)) {
            boolean print = source.startsWith("{{", begin.start());
            String text = source.substring(place, begin.start());
            boolean lineBegins = place == 0 || source.charAt(place - 1) == '\n';
            place = begin.end();
            char sign = place < source.length() ? source.charAt(place) : ' ';
            int last = text.lastIndexOf('\n') + 1;
            if (sign == '-') {
                text = JinjaValues.strip(text, null, false, true);
            } else if (sign != '+'
                    && !print
                    && (last > 0 || lineBegins)
                    && JinjaValues.strip(text.substring(last), null, true, false).isEmpty()) {
                text = text.substring(0, last);
            }
            add(Kind.TEXT, text, begin.start());
            place += sign == '-' || sign == '+' ? 1 : 0;
            int brackets = 0;
            if (source.startsWith("{#", begin.start())) {
                place = source.indexOf("#}", place);
                if (place < 0) {
                    throw error("a comment has no end");
                }
                place -= "-+".indexOf(source.charAt(place - 1)) < 0 ? 0 : 1;
                place = end(place, "#}");
                continue;
            }
            String end = print ? "}}" : "%}";
            add(Kind.BEGIN, print ? "{{" : "{%", begin.start());
            while (brackets > 0 || end(place, end) < 0) {
                if (place >= source.length()) {
                    throw error("%s is missing", end);
                }
                if (JinjaValues.isSpace(source.charAt(place))) {
                    place++;
                    continue;
                }
                Matcher token = TOKEN.matcher(source).region(place, source.length());
                if (!token.lookingAt()) {
                    throw error("%s is not expected", source.charAt(place));
                }
                if (token.group("string") != null) {
                    place = string(place);
                    continue;
                }
                Kind kind = token.group("name") != null ? Kind.NAME : Kind.OPERATOR;
                String value = token.group();
                add(token.group("number") != null ? Kind.NUMBER : kind, value, place);
                if ("([{".contains(value)) {
                    brackets++;
                } else if (")]}".contains(value)) {
                    brackets--;
                }
                place = token.end();
            }
            add(Kind.END, end, place);
            place = end(place, end);
        }
        add(Kind.TEXT, source.substring(place), source.length());
        add(Kind.NOTHING, "the end", source.length());
        at = 0;
    }

    /** Returns where the text after the end of a tag begins, or -1 if there is no end. */
    private int end(int place, String end) {
        boolean print = end.equals("}}");
        if (source.startsWith("-" + end, place)) {
            place += 3;
            while (place < source.length() && JinjaValues.isSpace(source.charAt(place))) {
                place++;
            }
            return place;
        }
        if (!print && source.startsWith("+" + end, place)) {
            return place + 3;
        }
        if (!source.startsWith(end, place)) {
            return -1;
        }
        return place + (!print && source.startsWith("\n", place + 2) ? 3 : 2);
    }

    private int string(int begin) {
        int end = begin + 1;
        while (end < source.length() && source.charAt(end) != source.charAt(begin)) {
            end += source.charAt(end) == '\\' ? 2 : 1;
        }
        if (end >= source.length()) {
            throw error("a string has no end");
        }
        Matcher escapes = ESCAPE.matcher(source.substring(begin + 1, end));
        String text =
                escapes.replaceAll(
                        found -> {
                            String code = found.group(1) == null ? found.group(2) : found.group(1);
                            String value =
                                    code == null
                                            ? escape(found.group(3))
                                            : Character.toString(Integer.parseInt(code, 16));
                            return Matcher.quoteReplacement(value);
                        });
        add(Kind.STRING, text, begin);
        return end + 1;
    }

    private static String escape(String letter) {
        return switch (letter) {
            case "n" -> "\n";
            case "t" -> "\t";
            case "r" -> "\r";
            case "b" -> "\b";
            case "f" -> "\f";
            case "\n" -> "";
            case "\\", "'", "\"" -> letter;
            default -> {
                if ("av01234567NU".contains(letter)) {
                    throw error("the escape \\%s is not supported", letter);
                }
                yield "\\" + letter;
            }
        };
    }

    // ---- statements

    private Token peek() {
        return tokens.get(at);
    }

    private boolean take(Kind kind, String text) {
        boolean found = peek().is(kind, text);
        at += found ? 1 : 0;
        return found;
    }

    private boolean operator(String text) {
        return take(Kind.OPERATOR, text);
    }

    private boolean word(String text) {
        return take(Kind.NAME, text);
    }

    private void expect(Kind kind, String text) {
        if (!take(kind, text)) {
            throw error("%s is expected, not %s", text, peek().text);
        }
    }

    /** Returns whether brackets have another part, and reads the comma before it, or their end. */
    private boolean next(String end) {
        Token last = tokens.get(at - 1);
        boolean first = last.kind == Kind.OPERATOR && "([{".contains(last.text);
        if (!first && !peek().is(Kind.OPERATOR, end)) {
            expect(Kind.OPERATOR, ",");
        }
        return !operator(end);
    }

    private String name() {
        Token token = peek();
        if (token.kind != Kind.NAME) {
            throw error("a name is expected, not %s", token.text);
        }
        at++;
        return token.text;
    }

    /** Reads up to one of some tags, whose name is read too. */
    private Node body(String... ends) {
        List<Node> nodes = new ArrayList<>();
        while (true) {
            Token token = peek();
            if (token.kind == Kind.NOTHING) {
                if (ends.length > 0) {
                    throw error("%s is missing", ends[ends.length - 1]);
                }
                return all(nodes);
            }
            at++;
            if (token.kind == Kind.TEXT) {
                nodes.add(output(token.line, scope -> token.text));
            } else if (token.text.equals("{{")) {
                nodes.add(output(token.line, list()));
                expect(Kind.END, "}}");
            } else {
                String name = name();
                if (List.of(ends).contains(name)) {
                    return all(nodes);
                }
                Node node = statement(name);
                expect(Kind.END, "%}");
                nodes.add(
                        scope -> {
                            scope.run.line = token.line;
                            scope.run.spend(1);
                            return node.run(scope);
                        });
            }
        }
    }

    private static Node output(int line, Expression value) {
        return scope -> {
            scope.run.line = line;
            scope.run.print(JinjaValues.string(value.eval(scope)));
            return Flow.NEXT;
        };
    }

    private static Node all(List<Node> nodes) {
        return scope -> {
            for (Node node : nodes) {
                Flow flow = node.run(scope);
                if (flow != Flow.NEXT) {
                    return flow;
                }
            }
            return Flow.NEXT;
        };
    }

    private Node block(String... ends) {
        expect(Kind.END, "%}");
        return body(ends);
    }

    private boolean ended(String name) {
        return tokens.get(at - 1).is(Kind.NAME, name);
    }

    private Node statement(String name) {
        return switch (name) {
            case "if" -> condition();
            case "for" -> loop();
            case "set" -> set();
            case "macro" -> macro();
            case "break" -> scope -> Flow.BREAK;
            case "continue" -> scope -> Flow.CONTINUE;
            case "generation" -> {
                Node body = block("endgeneration");
                yield scope -> body.run(new Scope(scope, scope.run));
            }
            default -> {
                at--;
                throw error("the tag %s is not supported", name);
            }
        };
    }

    private Node condition() {
        Expression test = expression();
        Node then = block("elif", "else", "endif");
        Node other = ended("elif") ? condition() : ended("else") ? block("endif") : all(List.of());
        return scope -> (JinjaValues.isTrue(test.eval(scope)) ? then : other).run(scope);
    }

    private Node loop() {
        List<String> names = new ArrayList<>();
        boolean bracket = operator("(");
        do {
            names.add(name());
        } while (operator(","));
        if (bracket) {
            expect(Kind.OPERATOR, ")");
        }
        expect(Kind.NAME, "in");
        Expression items = or();
        Expression filter = word("if") ? expression() : null;
        Node body = block("else", "endfor");
        Node other = ended("else") ? block("endfor") : all(List.of());
        return scope -> {
            List<@Nullable Object> list = new ArrayList<>();
            for (Object item : JinjaValues.items(items.eval(scope))) {
                if (filter == null || JinjaValues.isTrue(filter.eval(bind(scope, names, item)))) {
                    list.add(item);
                }
            }
            for (int i = 0; i < list.size(); i++) {
                Scope inner = bind(scope, names, list.get(i));
                inner.set("loop", loop(list, i));
                scope.run.spend(1);
                if (body.run(inner) == Flow.BREAK) {
                    break;
                }
            }
            return list.isEmpty() ? other.run(scope) : Flow.NEXT;
        };
    }

    private static Scope bind(Scope scope, List<String> names, @Nullable Object item) {
        Scope inner = new Scope(scope, scope.run);
        if (names.size() == 1) {
            inner.set(names.get(0), item);
            return inner;
        }
        List<@Nullable Object> items = JinjaValues.items(item);
        if (items.size() != names.size()) {
            throw error("%d values for the %d names of a loop", items.size(), names.size());
        }
        for (int i = 0; i < names.size(); i++) {
            inner.set(names.get(i), items.get(i));
        }
        return inner;
    }

    private static Namespace loop(List<@Nullable Object> list, int i) {
        Namespace loop = new Namespace();
        loop.put("index0", (long) i);
        loop.put("index", i + 1L);
        loop.put("revindex0", list.size() - i - 1L);
        loop.put("revindex", (long) list.size() - i);
        loop.put("length", (long) list.size());
        loop.put("first", i == 0);
        loop.put("last", i == list.size() - 1);
        if (i > 0) {
            loop.put("previtem", list.get(i - 1));
        }
        if (i < list.size() - 1) {
            loop.put("nextitem", list.get(i + 1));
        }
        return loop;
    }

    private Node set() {
        String name = name();
        String attribute = operator(".") ? name() : null;
        Expression value;
        if (operator("=")) {
            value = list();
        } else {
            Node body = block("endset");
            value = scope -> scope.capture(body);
        }
        return scope -> {
            Object result = value.eval(scope);
            if (attribute == null) {
                scope.set(name, result);
            } else if (scope.get(name) instanceof Namespace namespace) {
                namespace.put(attribute, result);
            } else {
                throw error("%s is no namespace: its attributes cannot be set", name);
            }
            return Flow.NEXT;
        };
    }

    private Node macro() {
        String name = name();
        Map<String, Expression> parameters = new LinkedHashMap<>();
        expect(Kind.OPERATOR, "(");
        while (next(")")) {
            String parameter = name();
            Expression byDefault =
                    operator("=") ? expression() : scope -> new JinjaTemplate.Undefined(parameter);
            parameters.put(parameter, byDefault);
        }
        Node body = block("endmacro");
        return outer -> {
            Function function =
                    (caller, arguments) -> {
                        Scope scope = new Scope(outer, outer.run);
                        int place = 0;
                        for (Map.Entry<String, Expression> each : parameters.entrySet()) {
                            Object value = arguments.get(place++, each.getKey(), scope);
                            scope.set(
                                    each.getKey(),
                                    value == scope ? each.getValue().eval(scope) : value);
                        }
                        return scope.capture(body);
                    };
            outer.set(name, function);
            return Flow.NEXT;
        };
    }

    // ---- expressions, from those that bind least

    /** An expression, or several with commas, which are a list. */
    private Expression list() {
        Expression first = expression();
        if (!peek().is(Kind.OPERATOR, ",")) {
            return first;
        }
        List<Expression> all = new ArrayList<>(List.of(first));
        while (operator(",") && peek().kind != Kind.END && !peek().is(Kind.OPERATOR, ")")) {
            all.add(expression());
        }
        return scope -> values(all, scope);
    }

    private static List<@Nullable Object> values(List<Expression> all, Scope scope) {
        List<@Nullable Object> values = new ArrayList<>();
        for (Expression each : all) {
            scope.run.spend(1);
            values.add(each.eval(scope));
        }
        return values;
    }

    private Expression expression() {
        Expression value = or();
        while (word("if")) {
            Expression then = value;
            Expression test = or();
            Expression other =
                    word("else")
                            ? expression()
                            : scope -> new JinjaTemplate.Undefined("the value without else");
            value = scope -> (JinjaValues.isTrue(test.eval(scope)) ? then : other).eval(scope);
        }
        return value;
    }

    private Expression or() {
        return either("or", true, () -> either("and", false, this::not));
    }

    /** The first value that is true, for or, or false, for and; without one, the last. */
    private Expression either(String word, boolean ends, Supplier<Expression> next) {
        Expression left = next.get();
        while (word(word)) {
            Expression first = left;
            Expression second = next.get();
            left =
                    scope -> {
                        Object value = first.eval(scope);
                        return JinjaValues.isTrue(value) == ends ? value : second.eval(scope);
                    };
        }
        return left;
    }

    private Expression not() {
        if (word("not")) {
            Expression value = not();
            return scope -> !JinjaValues.isTrue(value.eval(scope));
        }
        return comparison();
    }

    private Expression comparison() {
        Expression left = arithmetic();
        Expression all = null;
        while (true) {
            Token token = peek();
            boolean negated = token.is(Kind.NAME, "not") && tokens.get(at + 1).is(Kind.NAME, "in");
            String operator = negated ? "in" : token.text;
            boolean found =
                    token.kind == Kind.OPERATOR
                            ? COMPARISONS.contains(operator)
                            : operator.equals("in") && token.kind == Kind.NAME;
            if (!found) {
                return all == null ? left : all;
            }
            at += negated ? 2 : 1;
            Expression first = left;
            Expression second = arithmetic();
            Expression before = all;
            all =
                    scope ->
                            (before == null || JinjaValues.isTrue(before.eval(scope)))
                                    && JinjaValues.compare(
                                                    scope.run,
                                                    operator,
                                                    first.eval(scope),
                                                    second.eval(scope))
                                            != negated;
            left = second;
        }
    }

    private Expression arithmetic() {
        Supplier<Expression> products = () -> chain(Set.of("*", "/", "//", "%"), () -> unary(true));
        return chain(Set.of("+", "-"), () -> chain(Set.of("~"), products));
    }

    private Expression chain(Set<String> operators, Supplier<Expression> next) {
        Expression left = next.get();
        while (peek().kind == Kind.OPERATOR && operators.contains(peek().text)) {
            left = binary(left, tokens.get(at++).text, next.get());
        }
        return left;
    }

    private static Expression binary(Expression left, String operator, Expression right) {
        return scope ->
                JinjaValues.compute(scope.run, operator, left.eval(scope), right.eval(scope));
    }

    private Expression unary(boolean filters) {
        Expression value;
        if (operator("-")) {
            value = binary(scope -> 0L, "-", unary(false));
        } else if (operator("+")) {
            value = binary(scope -> 0L, "+", unary(false));
        } else {
            value = postfix(primary());
        }
        while (filters) {
            if (operator("|")) {
                value = filter(value);
            } else if (word("is")) {
                value = test(value);
            } else {
                break;
            }
        }
        return value;
    }

    private Expression filter(Expression value) {
        String name = name();
        Call call = peek().is(Kind.OPERATOR, "(") ? call() : Call.EMPTY;
        return scope -> JinjaValues.filter(scope, name, value.eval(scope), call.arguments(scope));
    }

    private Expression test(Expression value) {
        boolean negated = word("not");
        String name = operator("==") ? "==" : name();
        Token next = peek();
        boolean argument =
                next.kind == Kind.STRING
                        || next.kind == Kind.NUMBER
                        || next.kind == Kind.NAME
                                && !Set.of("and", "or", "not", "if", "else", "is", "in")
                                        .contains(next.text)
                        || next.kind == Kind.OPERATOR && "[{".contains(next.text);
        Call call =
                next.is(Kind.OPERATOR, "(")
                        ? call()
                        : argument ? new Call(List.of(postfix(primary())), Map.of()) : Call.EMPTY;
        return scope ->
                JinjaValues.test(scope, name, value.eval(scope), call.arguments(scope)) != negated;
    }

    /** The expressions of the arguments of a call. */
    private record Call(List<Expression> list, Map<String, Expression> named) {

        private static final Call EMPTY = new Call(List.of(), Map.of());

        Arguments arguments(Scope scope) {
            Map<String, @Nullable Object> values = new LinkedHashMap<>();
            named.forEach((name, value) -> values.put(name, value.eval(scope)));
            return new Arguments(values(list, scope), values);
        }
    }

    private Call call() {
        expect(Kind.OPERATOR, "(");
        List<Expression> list = new ArrayList<>();
        Map<String, Expression> named = new LinkedHashMap<>();
        while (next(")")) {
            if (peek().kind == Kind.NAME && tokens.get(at + 1).is(Kind.OPERATOR, "=")) {
                String name = name();
                at++;
                named.put(name, expression());
            } else {
                list.add(expression());
            }
        }
        return new Call(list, named);
    }

    private Expression postfix(Expression first) {
        Expression value = first;
        while (true) {
            Expression object = value;
            if (operator(".")) {
                String name = name();
                value = scope -> JinjaValues.attribute(object.eval(scope), name);
            } else if (operator("[")) {
                value = subscript(object);
            } else if (peek().is(Kind.OPERATOR, "(")) {
                Call call = call();
                value =
                        scope -> {
                            Object function = object.eval(scope);
                            if (function instanceof Function known) {
                                return known.call(scope, call.arguments(scope));
                            }
                            throw error("%s cannot be called", JinjaValues.describe(function));
                        };
            } else {
                return value;
            }
        }
    }

    private Expression subscript(Expression object) {
        Expression[] parts = new Expression[3];
        int colons = 0;
        while (!operator("]")) {
            if (operator(":") && colons < 2) {
                colons++;
            } else {
                parts[colons] = expression();
            }
        }
        Expression index = parts[0];
        if (colons == 0) {
            if (index == null) {
                throw error("an index is expected, not ]");
            }
            return scope -> JinjaValues.item(object.eval(scope), index.eval(scope));
        }
        Expression nothing = scope -> null;
        Expression from = index == null ? nothing : index;
        Expression to = parts[1] == null ? nothing : parts[1];
        Expression step = parts[2] == null ? nothing : parts[2];
        return scope ->
                JinjaValues.slice(
                        scope.run,
                        object.eval(scope),
                        from.eval(scope),
                        to.eval(scope),
                        step.eval(scope));
    }

    private Expression primary() {
        Token token = peek();
        at++;
        switch (token.kind) {
            case STRING:
                StringBuilder text = new StringBuilder(token.text);
                while (peek().kind == Kind.STRING) {
                    text.append(tokens.get(at++).text);
                }
                String string = text.toString();
                return scope -> string;
            case NUMBER:
                Object number =
                        token.text.matches("\\d+")
                                ? (Object) Long.valueOf(token.text)
                                : (Object) Double.valueOf(token.text);
                return scope -> number;
            case NAME:
                return switch (token.text) {
                    case "true", "True" -> scope -> true;
                    case "false", "False" -> scope -> false;
                    case "none", "None" -> scope -> null;
                    default -> scope -> scope.get(token.text);
                };
            case OPERATOR:
                if (token.text.equals("(")) {
                    Expression value = peek().is(Kind.OPERATOR, ")") ? scope -> List.of() : list();
                    expect(Kind.OPERATOR, ")");
                    return value;
                }
                if (token.text.equals("[")) {
                    List<Expression> all = new ArrayList<>();
                    while (next("]")) {
                        all.add(expression());
                    }
                    return scope -> values(all, scope);
                }
                if (token.text.equals("{")) {
                    return map();
                }
                break;
            default:
        }
        at--;
        throw error("%s is not expected", token.text);
    }

    private Expression map() {
        List<Expression> keys = new ArrayList<>();
        List<Expression> all = new ArrayList<>();
        while (next("}")) {
            keys.add(expression());
            expect(Kind.OPERATOR, ":");
            all.add(expression());
        }
        return scope -> {
            Map<@Nullable Object, @Nullable Object> map = new LinkedHashMap<>();
            List<@Nullable Object> names = values(keys, scope);
            for (int i = 0; i < names.size(); i++) {
                map.put(names.get(i), all.get(i).eval(scope));
            }
            return map;
        };
    }
}
