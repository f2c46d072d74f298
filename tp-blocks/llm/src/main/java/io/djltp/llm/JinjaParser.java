package io.djltp.llm;

import static io.djltp.llm.JinjaValues.error;
import static io.djltp.llm.JinjaValues.strip;

import io.djltp.llm.JinjaTemplate.Arguments;
import io.djltp.llm.JinjaTemplate.Expression;
import io.djltp.llm.JinjaTemplate.Flow;
import io.djltp.llm.JinjaTemplate.Function;
import io.djltp.llm.JinjaTemplate.Namespace;
import io.djltp.llm.JinjaTemplate.Node;
import io.djltp.llm.JinjaTemplate.Scope;
import io.djltp.llm.JinjaTemplate.Undefined;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Reads a {@link JinjaTemplate}: first its tokens, then its statements and expressions. */
final class JinjaParser {

    private static final String SPACE = JinjaValues.SPACE;
    private static final Pattern BEGIN = Pattern.compile("\\{([{%#])([-+]?)");
    private static final Pattern TOKEN =
            Pattern.compile(
                    "('[^'\\\\]*+(?:\\\\.[^'\\\\]*+)*+'|\"[^\"\\\\]*+(?:\\\\.[^\"\\\\]*+)*+\")"
                            + "|(\\d+(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)|("
                            + SPACE
                            + ")|[\\p{L}_][\\p{L}\\p{N}_]*|//|[=!<>]=|[-+*/%~\\[\\](){}.,:=<>|]",
                    Pattern.DOTALL);
    private static final Pattern ESCAPE =
            Pattern.compile("\\\\(?:x(\\p{XDigit}{2})|u(\\p{XDigit}{4})|(.))", Pattern.DOTALL);
    private static final Pattern END_OF_NOTE = end("#}");
    private static final Set<String> COMPARISONS = Set.of("==", "!=", "<", "<=", ">", ">=", "in");

    private static final Set<String> WORDS = Set.of("and", "or", "not", "if", "else", "is", "in");

    private final List<Token> tokens = new ArrayList<>();
    private final String source;
    private int at;
    private int line = 1;
    private int counted; // the lines up to here

    private enum Kind {
        TEXT,
        NUMBER,
        STRING,
        WORD, // names, operators, and both ends of tags
        NOTHING
    }

    private record Token(Kind kind, String text, int line) {

        boolean is(String value) {
            return kind == Kind.WORD && text.equals(value);
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
            String text = source.substring(place, begin.start());
            int last = text.lastIndexOf('\n') + 1;
            boolean lineBegins = last > 0 || place == 0 || source.charAt(place - 1) == '\n';
            if (begin.group(2).equals("-")) {
                text = strip(text, null, false, true);
            } else if (begin.group(2).isEmpty()
                    && !begin.group(1).equals("{")
                    && lineBegins
                    && strip(text.substring(last), null, true, false).isEmpty()) {
                text = text.substring(0, last);
            }
            add(Kind.TEXT, text, begin.start());
            place = begin.end();
            String print = begin.group(1);
            if (print.equals("#")) {
                Matcher note = END_OF_NOTE.matcher(source);
                if (!note.find(place)) {
                    throw error("a comment has no end");
                }
                place = note.end();
                continue;
            }
            add(Kind.WORD, "{" + print, begin.start());
            String close = print.equals("{") ? "}}" : "%}";
            Matcher end = end(close).matcher(source);
            Matcher token = TOKEN.matcher(source);
            int brackets = 0;
            while (brackets > 0 || !end.region(place, source.length()).lookingAt()) {
                if (!token.region(place, source.length()).lookingAt()) {
                    throw place < source.length()
                            ? error("%s is not expected", source.charAt(place))
                            : error("%s is missing", close);
                }
                String found = token.group();
                if (token.group(1) != null) {
                    add(Kind.STRING, unescaped(found.substring(1, found.length() - 1)), place);
                } else if (token.group(3) == null) {
                    add(token.group(2) == null ? Kind.WORD : Kind.NUMBER, found, place);
                    brackets += "([{".contains(found) ? 1 : ")]}".contains(found) ? -1 : 0;
                }
                place = token.end();
            }
            add(Kind.WORD, close, place);
            place = end.end();
        }
        add(Kind.TEXT, source.substring(place), source.length());
        add(Kind.NOTHING, "the end", source.length());
        at = 0;
    }

    /** Returns what ends a tag, with the space that goes with it. */
    private static Pattern end(String close) {
        String end = Pattern.quote(close);
        String other = close.equals("}}") ? end : "\\+" + end + "|" + end + "\n?";
        return Pattern.compile("-" + end + "(?:" + SPACE + ")?|" + other);
    }

    private static String unescaped(String text) {
        return ESCAPE.matcher(text)
                .replaceAll(
                        found -> {
                            String code = found.group(1) == null ? found.group(2) : found.group(1);
                            String value =
                                    code == null
                                            ? escape(found.group(3))
                                            : Character.toString(Integer.parseInt(code, 16));
                            return Matcher.quoteReplacement(value);
                        });
    }

    private static String escape(String letter) {
        if ("av01234567NU".contains(letter)) {
            throw error("the escape \\%s is not supported", letter);
        }
        String same = "\\" + letter;
        return "ntrbf\n\\'\"".contains(letter) ? same.translateEscapes() : same;
    }

    // ---- statements

    private Token peek() {
        return tokens.get(at);
    }

    private boolean take(String text) {
        boolean found = peek().is(text);
        at += found ? 1 : 0;
        return found;
    }

    private void expect(String text) {
        if (!take(text)) {
            throw error("%s is expected, not %s", text, peek().text);
        }
    }

    /** Returns whether brackets have another part, and reads the comma before it, or their end. */
    private boolean next(String end) {
        Token last = tokens.get(at - 1);
        if (!(last.is("(") || last.is("[") || last.is("{")) && !peek().is(end)) {
            expect(",");
        }
        return !take(end);
    }

    private static boolean isName(Token token) {
        char first = token.kind == Kind.WORD ? token.text.charAt(0) : ' ';
        return Character.isLetter(first) || first == '_';
    }

    private String name() {
        if (!isName(peek())) {
            throw error("a name is expected, not %s", peek().text);
        }
        return tokens.get(at++).text;
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
                expect("}}");
            } else {
                String name = name();
                if (List.of(ends).contains(name)) {
                    return all(nodes);
                }
                Node node = statement(name);
                expect("%}");
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
            String text = scope.run.string(value.eval(scope));
            scope.run.spend(1L + text.length());
            scope.run.out.append(text);
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
        expect("%}");
        return body(ends);
    }

    private boolean ended(String name) {
        return tokens.get(at - 1).is(name);
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
        return scope -> (scope.run.isTrue(test.eval(scope)) ? then : other).run(scope);
    }

    private Node loop() {
        List<String> names = new ArrayList<>();
        boolean bracket = take("(");
        do {
            names.add(name());
        } while (take(","));
        if (bracket) {
            expect(")");
        }
        expect("in");
        Expression items = or();
        Expression filter = take("if") ? expression() : null;
        Node body = block("else", "endfor");
        Node other = ended("else") ? block("endfor") : all(List.of());
        return scope -> {
            List<@Nullable Object> list = new ArrayList<>();
            for (Object item : scope.run.items(items.eval(scope))) {
                scope.run.spend(20);
                if (filter == null || scope.run.isTrue(filter.eval(bind(scope, names, item)))) {
                    list.add(item);
                }
            }
            for (int i = 0; i < list.size(); i++) {
                Scope inner = bind(scope, names, list.get(i));
                inner.set("loop", loop(list, i));
                scope.run.spend(20);
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
        List<@Nullable Object> items = scope.run.items(item);
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
        String attribute = take(".") ? name() : null;
        Expression value;
        if (take("=")) {
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
        expect("(");
        while (next(")")) {
            String parameter = name();
            Expression byDefault = take("=") ? expression() : scope -> new Undefined(parameter);
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
        if (!peek().is(",")) {
            return first;
        }
        List<Expression> all = new ArrayList<>(List.of(first));
        while (take(",") && !peek().is("}}") && !peek().is("%}") && !peek().is(")")) {
            all.add(expression());
        }
        return scope -> values(all, scope);
    }

    private static List<@Nullable Object> values(List<Expression> all, Scope scope) {
        List<@Nullable Object> values = new ArrayList<>();
        for (Expression each : all) {
            scope.run.spend(10);
            values.add(each.eval(scope));
        }
        return values;
    }

    private Expression expression() {
        Expression value = or();
        while (take("if")) {
            Expression then = value;
            Expression test = or();
            Expression other =
                    take("else") ? expression() : scope -> new Undefined("the value without else");
            value = scope -> (scope.run.isTrue(test.eval(scope)) ? then : other).eval(scope);
        }
        return value;
    }

    private Expression or() {
        return either("or", true, () -> either("and", false, this::not));
    }

    /** The first value that is true, for or, or false, for and; without one, the last. */
    private Expression either(String word, boolean ends, Supplier<Expression> next) {
        Expression left = next.get();
        while (take(word)) {
            Expression first = left;
            Expression second = next.get();
            left =
                    scope -> {
                        Object value = first.eval(scope);
                        return scope.run.isTrue(value) == ends ? value : second.eval(scope);
                    };
        }
        return left;
    }

    private Expression not() {
        if (take("not")) {
            Expression value = not();
            return scope -> !scope.run.isTrue(value.eval(scope));
        }
        return comparison();
    }

    private Expression comparison() {
        Expression left = arithmetic();
        Expression all = null;
        while (true) {
            Token token = peek();
            boolean negated = token.is("not") && tokens.get(at + 1).is("in");
            String operator = negated ? "in" : token.text;
            if (token.kind != Kind.WORD || !COMPARISONS.contains(operator)) {
                return all == null ? left : all;
            }
            at += negated ? 2 : 1;
            Expression first = left;
            Expression second = arithmetic();
            Expression before = all;
            all =
                    scope ->
                            (before == null || scope.run.isTrue(before.eval(scope)))
                                    && scope.run.compare(
                                                    operator, first.eval(scope), second.eval(scope))
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
        while (peek().kind == Kind.WORD && operators.contains(peek().text)) {
            left = binary(left, tokens.get(at++).text, next.get());
        }
        return left;
    }

    private static Expression binary(Expression left, String operator, Expression right) {
        return scope -> scope.run.compute(operator, left.eval(scope), right.eval(scope));
    }

    private Expression unary(boolean filters) {
        Expression value;
        if (take("-")) {
            value = binary(scope -> 0L, "-", unary(false));
        } else {
            value = postfix(primary());
        }
        while (filters) {
            if (take("|")) {
                value = filter(value);
            } else if (take("is")) {
                value = test(value);
            } else {
                break;
            }
        }
        return value;
    }

    private Expression filter(Expression value) {
        String name = name();
        Call call = peek().is("(") ? call() : Call.EMPTY;
        return scope -> scope.run.filter(name, value.eval(scope), call.arguments(scope));
    }

    private Expression test(Expression value) {
        boolean negated = take("not");
        String name = take("==") ? "==" : name();
        Token next = peek();
        boolean argument =
                next.kind == Kind.STRING
                        || next.kind == Kind.NUMBER
                        || isName(next) && !WORDS.contains(next.text)
                        || next.is("[")
                        || next.is("{");
        Call call =
                next.is("(")
                        ? call()
                        : argument ? new Call(List.of(postfix(primary())), Map.of()) : Call.EMPTY;
        return scope -> scope.run.test(name, value.eval(scope), call.arguments(scope)) != negated;
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
        expect("(");
        List<Expression> list = new ArrayList<>();
        Map<String, Expression> named = new LinkedHashMap<>();
        while (next(")")) {
            if (tokens.get(at + 1).is("=") && isName(peek())) {
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
            if (take(".")) {
                String name = name();
                value = scope -> scope.run.attribute(object.eval(scope), name);
            } else if (take("[")) {
                value = subscript(object);
            } else if (peek().is("(")) {
                Call call = call();
                value =
                        scope -> {
                            Object function = object.eval(scope);
                            if (function instanceof Function known) {
                                Arguments arguments = call.arguments(scope);
                                Object result = known.call(scope, arguments);
                                arguments.check("the function");
                                return result;
                            }
                            throw error("%s cannot be called", JinjaValues.describe(function));
                        };
            } else {
                return value;
            }
        }
    }

    private Expression subscript(Expression object) {
        List<Expression> parts = new ArrayList<>(Collections.nCopies(3, scope -> null));
        int colons = 0;
        if (peek().is("]")) {
            throw error("an index is expected, not ]");
        }
        while (!take("]")) {
            if (colons < 2 && take(":")) {
                colons++;
            } else {
                parts.set(colons, expression());
            }
        }
        if (colons == 0) {
            return scope -> scope.run.item(object.eval(scope), parts.get(0).eval(scope));
        }
        return scope -> scope.run.slice(object.eval(scope), values(parts, scope));
    }

    private Expression primary() {
        Token token = tokens.get(at++);
        if (token.kind == Kind.STRING) {
            StringBuilder text = new StringBuilder(token.text);
            while (peek().kind == Kind.STRING) {
                text.append(tokens.get(at++).text);
            }
            String string = text.toString();
            return scope -> string;
        }
        if (token.kind == Kind.NUMBER) {
            boolean whole = token.text.chars().allMatch(Character::isDigit);
            Object number = whole ? (Object) Long.valueOf(token.text) : Double.valueOf(token.text);
            return scope -> number;
        }
        if (token.is("(")) {
            Expression value = peek().is(")") ? scope -> List.of() : list();
            expect(")");
            return value;
        }
        if (token.is("[")) {
            List<Expression> all = new ArrayList<>();
            while (next("]")) {
                all.add(expression());
            }
            return scope -> values(all, scope);
        }
        if (token.is("{")) {
            return map();
        }
        if (!isName(token)) {
            at--;
            throw error("%s is not expected", token.text);
        }
        return switch (token.text) {
            case "true", "True" -> scope -> true;
            case "false", "False" -> scope -> false;
            case "none", "None" -> scope -> null;
            default -> scope -> scope.get(token.text);
        };
    }

    private Expression map() {
        List<Expression> keys = new ArrayList<>();
        List<Expression> all = new ArrayList<>();
        while (next("}")) {
            keys.add(expression());
            expect(":");
            all.add(expression());
        }
        return scope -> {
            Map<@Nullable Object, @Nullable Object> map = new LinkedHashMap<>();
            List<@Nullable Object> names = values(keys, scope);
            for (int i = 0; i < names.size(); i++) {
                map.put(JinjaValues.key(names.get(i)), all.get(i).eval(scope));
            }
            return map;
        };
    }
}
