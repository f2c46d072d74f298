package io.djltp.llm;

import io.djltp.llm.JinjaTemplate.Arguments;
import io.djltp.llm.JinjaTemplate.Function;
import io.djltp.llm.JinjaTemplate.Namespace;
import io.djltp.llm.JinjaTemplate.Run;
import io.djltp.llm.JinjaTemplate.Scope;
import io.djltp.llm.JinjaTemplate.Undefined;

import org.jspecify.annotations.Nullable;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.StringJoiner;

/** What operators, filters, tests and methods of a {@link JinjaTemplate} do, as in Python. */
final class JinjaValues {

    private static final Set<String> METHODS =
            Set.of(
                    "strip lstrip rstrip startswith endswith removeprefix removesuffix split splitlines"
                            .concat(" join replace find count upper lower capitalize title")
                            .split(" "));

    private JinjaValues() {}

    private static IllegalArgumentException error(String message, Object... values) {
        return new IllegalArgumentException(message.formatted(values));
    }

    /** Returns a value of Java as one of a template. */
    static @Nullable Object of(@Nullable Object value) {
        if (value instanceof Integer || value instanceof Short || value instanceof Byte) {
            return ((Number) value).longValue();
        }
        if (value instanceof Float number) {
            return Double.valueOf(number.toString());
        }
        if (value instanceof List<?> list) {
            List<@Nullable Object> copy = new ArrayList<>();
            list.forEach(each -> copy.add(of(each)));
            return copy;
        }
        if (value instanceof Map<?, ?> map) {
            Map<@Nullable Object, @Nullable Object> copy = new LinkedHashMap<>();
            map.forEach((key, each) -> copy.put(of(key), of(each)));
            return copy;
        }
        if (value == null
                || value instanceof String
                || value instanceof Boolean
                || value instanceof Long
                || value instanceof Double) {
            return value;
        }
        throw error("a variable is %s: use strings, numbers, lists, maps", value.getClass());
    }

    static String describe(@Nullable Object value) {
        if (value instanceof Undefined missing) {
            return "'" + missing.name() + "', which is undefined,";
        }
        return value == null ? "None" : "a " + value.getClass().getSimpleName();
    }

    static boolean isTrue(@Nullable Object value) {
        if (value instanceof Number number) {
            return number.doubleValue() != 0;
        }
        return !(value == null
                || value instanceof Undefined
                || value.equals(false)
                || value.equals("")
                || value instanceof List<?> list && list.isEmpty()
                || value instanceof Map<?, ?> map && map.isEmpty());
    }

    static String text(@Nullable Object value) {
        if (value instanceof String text) {
            return text;
        }
        throw error("a string is expected, not %s", describe(value));
    }

    static long integer(@Nullable Object value) {
        if (value instanceof Long number) {
            return number;
        }
        throw error("a whole number is expected, not %s", describe(value));
    }

    /** Returns what a loop goes over. */
    static List<@Nullable Object> items(@Nullable Object value) {
        if (value instanceof List<?> list) {
            return Collections.unmodifiableList(list);
        }
        if (value instanceof Map<?, ?> map) {
            return new ArrayList<>(map.keySet());
        }
        if (value instanceof String text) {
            return new ArrayList<>(text.codePoints().mapToObj(Character::toString).toList());
        }
        if (value instanceof Undefined) {
            return List.of();
        }
        throw error("%s cannot be gone over", describe(value));
    }

    // ---- texts of values

    /** Returns a value as Python's str has it. */
    static String string(@Nullable Object value) {
        return value instanceof String text ? text : value instanceof Undefined ? "" : repr(value);
    }

    private static String repr(@Nullable Object value) {
        if (value instanceof String text) {
            char quote = text.contains("'") && !text.contains("\"") ? '"' : '\'';
            String escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t");
            escaped = escaped.replace("\r", "\\r");
            return quote + (quote == '"' ? escaped : escaped.replace("'", "\\'")) + quote;
        }
        if (value instanceof Boolean) {
            return value.equals(true) ? "True" : "False";
        }
        if (value instanceof List<?> list) {
            StringJoiner all = new StringJoiner(", ", "[", "]");
            list.forEach(each -> all.add(repr(each)));
            return all.toString();
        }
        if (value instanceof Map<?, ?> map && !(value instanceof Namespace)) {
            StringJoiner all = new StringJoiner(", ", "{", "}");
            map.forEach((key, each) -> all.add(repr(key) + ": " + repr(each)));
            return all.toString();
        }
        if (value == null) {
            return "None";
        }
        if (value instanceof Number number) {
            return number(number);
        }
        throw error("%s has no text", describe(value));
    }

    private static String number(Number value) {
        String text = value.toString();
        double size = Math.abs(value.doubleValue());
        if (value instanceof Double && (size >= 1e-4 && size < 1e16)) {
            text = new BigDecimal(text).stripTrailingZeros().toPlainString();
            return text.contains(".") ? text : text + ".0";
        }
        int e = text.indexOf('E');
        return e < 0
                ? text
                : text.substring(0, e).replaceAll("\\.0$", "")
                        + "e%+03d".formatted(Integer.valueOf(text.substring(e + 1)));
    }

    private static String json(@Nullable Object value, @Nullable String indent, String margin) {
        if (value instanceof String text) {
            StringBuilder all = new StringBuilder("\"");
            for (char c : text.toCharArray()) {
                int known = "\"\\\n\r\t\b\f".indexOf(c);
                all.append(
                        known >= 0
                                ? "\\" + "\"\\nrtbf".charAt(known)
                                : c < ' ' ? "\\u%04x".formatted((int) c) : c);
            }
            return all.append('"').toString();
        }
        String inner = indent == null ? "" : margin + indent;
        String comma = indent == null ? ", " : ",\n" + inner;
        String begin = indent == null ? "" : "\n" + inner;
        String end = indent == null ? "" : "\n" + margin;
        if (value instanceof List<?> list) {
            StringJoiner all = new StringJoiner(comma, "[" + begin, end + "]").setEmptyValue("[]");
            list.forEach(each -> all.add(json(each, indent, inner)));
            return all.toString();
        }
        if (value instanceof Map<?, ?> map && !(value instanceof Namespace)) {
            StringJoiner all = new StringJoiner(comma, "{" + begin, end + "}").setEmptyValue("{}");
            map.forEach(
                    (key, each) ->
                            all.add(
                                    json(string(key), null, "")
                                            + ": "
                                            + json(each, indent, inner)));
            return all.toString();
        }
        if (value == null || value instanceof Boolean) {
            return String.valueOf(value);
        }
        if (value instanceof Number number) {
            return number(number);
        }
        throw error("%s cannot be written as JSON", describe(value));
    }

    // ---- operators

    private static boolean equal(@Nullable Object left, @Nullable Object right) {
        if (left instanceof Number first && right instanceof Number second) {
            return first.doubleValue() == second.doubleValue();
        }
        return left instanceof Undefined ? right instanceof Undefined : Objects.equals(left, right);
    }

    static boolean compare(
            Run run, String operator, @Nullable Object left, @Nullable Object right) {
        run.spend(size(left) + size(right));
        if (operator.equals("in")) {
            if (right instanceof String text) {
                return text.contains(text(left));
            }
            return right instanceof Map<?, ?> map
                    ? map.containsKey(left)
                    : items(right).stream().anyMatch(each -> equal(each, left));
        }
        if (operator.equals("==") || operator.equals("!=")) {
            return equal(left, right) == operator.equals("==");
        }
        int order;
        if (left instanceof Number first && right instanceof Number second) {
            order = Double.compare(first.doubleValue(), second.doubleValue());
        } else if (left instanceof String first && right instanceof String second) {
            order = first.compareTo(second);
        } else {
            throw error("%s %s %s is not possible", describe(left), operator, describe(right));
        }
        return switch (operator) {
            case "<" -> order < 0;
            case "<=" -> order <= 0;
            case ">" -> order > 0;
            default -> order >= 0;
        };
    }

    static Object compute(Run run, String operator, @Nullable Object left, @Nullable Object right) {
        run.spend(1L + size(left) + size(right));
        if (operator.equals("~")) {
            return string(left) + string(right);
        }
        if (left instanceof Long a && right instanceof Long b) {
            return switch (operator) {
                case "+" -> Math.addExact(a, b);
                case "-" -> Math.subtractExact(a, b);
                case "*" -> Math.multiplyExact(a, b);
                case "//" -> Math.floorDiv(a, b);
                case "%" -> Math.floorMod(a, b);
                default -> {
                    if (b == 0) {
                        throw error("division by zero");
                    }
                    yield (double) a / b;
                }
            };
        }
        if (left instanceof Number first && right instanceof Number second) {
            double a = first.doubleValue();
            double b = second.doubleValue();
            switch (operator) {
                case "+":
                    return a + b;
                case "-":
                    return a - b;
                case "*":
                    return a * b;
                case "/":
                    return a / b;
                default:
            }
        }
        if (operator.equals("+")) {
            if (left instanceof String first && right instanceof String second) {
                return first + second;
            }
            if (left instanceof List<?> first && right instanceof List<?> second) {
                List<@Nullable Object> all = new ArrayList<>(first);
                all.addAll(second);
                return all;
            }
        }
        if (operator.equals("*") && left instanceof String text && right instanceof Long times) {
            run.spend(Math.multiplyExact(text.length(), Math.max(0, times)));
            return text.repeat(Math.max(0, times.intValue()));
        }
        throw error("%s %s %s is not possible", describe(left), operator, describe(right));
    }

    private static long size(@Nullable Object value) {
        return value instanceof String text
                ? text.length()
                : value instanceof List<?> list
                        ? list.size()
                        : value instanceof Map<?, ?> map ? map.size() : 1;
    }

    // ---- parts of values

    static @Nullable Object item(@Nullable Object object, @Nullable Object key) {
        if (key instanceof Long index && (object instanceof List || object instanceof String)) {
            List<@Nullable Object> list = items(object);
            long place = index < 0 ? index + list.size() : index;
            return place >= 0 && place < list.size()
                    ? list.get((int) place)
                    : new Undefined("[" + index + "]");
        }
        if (object instanceof Map<?, ?> map && map.containsKey(key)) {
            return map.get(key);
        }
        return attribute(object, string(key));
    }

    static @Nullable Object slice(
            Run run,
            @Nullable Object object,
            @Nullable Object from,
            @Nullable Object to,
            @Nullable Object by) {
        run.spend(size(object));
        List<@Nullable Object> list = items(object);
        long step = by == null ? 1 : integer(by);
        if (step == 0) {
            throw error("the step of a slice is 0");
        }
        long least = step > 0 ? 0 : -1;
        long most = step > 0 ? list.size() : list.size() - 1L;
        long begin = from == null ? (step > 0 ? least : most) : bound(from, list, least, most);
        long end = to == null ? (step > 0 ? most : least) : bound(to, list, least, most);
        List<@Nullable Object> part = new ArrayList<>();
        for (long i = begin; step > 0 ? i < end : i > end; i += step) {
            part.add(list.get((int) i));
        }
        return object instanceof String
                ? String.join("", part.stream().map(p -> text(p)).toList())
                : part;
    }

    private static long bound(Object index, List<?> list, long least, long most) {
        long place = integer(index);
        place += place < 0 ? list.size() : 0;
        return Math.max(least, Math.min(most, place));
    }

    static @Nullable Object attribute(@Nullable Object object, String name) {
        if (object instanceof Undefined missing) {
            throw error("'%s' is undefined, and has no %s", missing.name(), name);
        }
        if (object instanceof Map<?, ?> map) {
            if (!(object instanceof Namespace)) {
                switch (name) {
                    case "items", "keys", "values":
                        return (Function) (scope, arguments) -> parts(map, name);
                    case "get":
                        return (Function)
                                (scope, arguments) -> {
                                    Object key = arguments.get(0, "key", null);
                                    return map.containsKey(key)
                                            ? map.get(key)
                                            : arguments.get(1, "default", null);
                                };
                    default:
                }
            }
            return map.containsKey(name) ? map.get(name) : new Undefined(name);
        }
        if (object instanceof String text && METHODS.contains(name)) {
            Function method =
                    (scope, arguments) -> {
                        scope.run.spend(1L + text.length());
                        return method(scope.run, text, name, arguments);
                    };
            return method;
        }
        return new Undefined(name);
    }

    private static List<@Nullable Object> parts(Map<?, ?> map, String name) {
        List<@Nullable Object> parts = new ArrayList<>();
        map.forEach(
                (key, value) -> {
                    List<@Nullable Object> pair = new ArrayList<>();
                    pair.add(key);
                    pair.add(value);
                    parts.add(name.equals("keys") ? key : name.equals("values") ? value : pair);
                });
        return parts;
    }

    // ---- methods of strings

    private static @Nullable Object method(Run run, String text, String name, Arguments arguments) {
        Object first = arguments.get(0, name.endsWith("split") ? "sep" : "", null);
        return switch (name) {
            case "strip" -> strip(text, first, true, true);
            case "lstrip" -> strip(text, first, true, false);
            case "rstrip" -> strip(text, first, false, true);
            case "startswith" -> any(first).stream().anyMatch(text::startsWith);
            case "endswith" -> any(first).stream().anyMatch(text::endsWith);
            case "removeprefix" ->
                    text.startsWith(text(first)) ? text.substring(text(first).length()) : text;
            case "removesuffix" ->
                    text.endsWith(text(first))
                            ? text.substring(0, text.length() - text(first).length())
                            : text;
            case "split" -> split(text, first, integer(arguments.get(1, "maxsplit", -1L)));
            case "splitlines" -> text.isEmpty() ? List.of() : List.of(text.split("\r\n|\r|\n"));
            case "join" -> join(run, items(first), text);
            case "replace" -> replace(run, text, text(first), text(arguments.get(1, "new", null)));
            case "find" -> (long) text.indexOf(text(first));
            case "count" -> (long) split(text, text(first), -1).size() - 1;
            case "upper" -> text.toUpperCase(Locale.ROOT);
            case "lower" -> text.toLowerCase(Locale.ROOT);
            case "capitalize" -> capitalize(text);
            case "title" -> title(text);
            default -> throw new IllegalStateException(name);
        };
    }

    /** As Python's str.isspace. */
    static boolean isSpace(char c) {
        return Character.isWhitespace(c) || Character.isSpaceChar(c) || c == '\u0085';
    }

    static String strip(String text, @Nullable Object letters, boolean left, boolean right) {
        String known = letters == null ? null : text(letters);
        int from = 0;
        int to = text.length();
        while (left && from < to && isOneOf(text.charAt(from), known)) {
            from++;
        }
        while (right && to > from && isOneOf(text.charAt(to - 1), known)) {
            to--;
        }
        return text.substring(from, to);
    }

    private static boolean isOneOf(char c, @Nullable String known) {
        return known == null ? isSpace(c) : known.indexOf(c) >= 0;
    }

    private static List<String> any(@Nullable Object texts) {
        return texts instanceof List<?> list
                ? list.stream().map(JinjaValues::text).toList()
                : List.of(text(texts));
    }

    private static List<@Nullable Object> split(String text, @Nullable Object at, long most) {
        List<@Nullable Object> parts = new ArrayList<>();
        if (at != null && text(at).isEmpty()) {
            throw error("the separator is empty");
        }
        String rest = at == null ? strip(text, null, true, false) : text;
        while (parts.size() != most) {
            int end = at == null ? 0 : rest.indexOf(text(at));
            if (at == null) {
                while (end < rest.length() && !isSpace(rest.charAt(end))) {
                    end++;
                }
                end = end == rest.length() ? -1 : end;
            }
            if (end < 0) {
                break;
            }
            parts.add(rest.substring(0, end));
            rest = rest.substring(end + (at == null ? 0 : text(at).length()));
            rest = at == null ? strip(rest, null, true, false) : rest;
        }
        if (at != null || !rest.isEmpty()) {
            parts.add(rest);
        }
        return parts;
    }

    private static String join(Run run, List<@Nullable Object> parts, String between) {
        StringJoiner all = new StringJoiner(between);
        for (Object part : parts) {
            String text = string(part);
            run.spend(text.length() + between.length());
            all.add(text);
        }
        return all.toString();
    }

    private static String replace(Run run, String text, String old, String by) {
        if (by.length() > old.length()) {
            long places = old.isEmpty() ? text.length() + 1L : text.length() / old.length();
            run.spend(Math.multiplyExact(places, by.length()));
        }
        return text.replace(old, by);
    }

    private static String capitalize(String text) {
        return text.isEmpty()
                ? text
                : text.substring(0, 1).toUpperCase(Locale.ROOT)
                        + text.substring(1).toLowerCase(Locale.ROOT);
    }

    private static String title(String text) {
        StringBuilder all = new StringBuilder();
        boolean begins = true;
        for (char c : text.toCharArray()) {
            all.append(begins ? Character.toTitleCase(c) : Character.toLowerCase(c));
            begins = !Character.isLetter(c);
        }
        return all.toString();
    }

    // ---- filters and tests

    static @Nullable Object filter(
            Scope scope, String name, @Nullable Object value, Arguments arguments) {
        scope.run.spend(1 + size(value));
        return switch (name) {
            case "trim" -> strip(string(value), arguments.get(0, "chars", null), true, true);
            case "string", "safe" -> string(value);
            case "upper", "lower", "capitalize", "title", "replace" ->
                    method(scope.run, string(value), name, arguments);
            case "length", "count" ->
                    value instanceof String text
                            ? (long) text.codePointCount(0, text.length())
                            : items(value).size();
            case "list" -> new ArrayList<>(items(value));
            case "first" -> item(items(value), 0L);
            case "last" -> item(items(value), -1L);
            case "reverse" -> slice(scope.run, value, null, null, -1L);
            case "items" -> value instanceof Map<?, ?> map ? parts(map, name) : List.of();
            case "dictsort" -> sorted(value);
            case "int" -> toInteger(value);
            case "join" -> join(scope.run, items(value), string(arguments.get(0, "d", "")));
            case "default", "d" ->
                    value instanceof Undefined
                                    || isTrue(arguments.get(1, "boolean", false)) && !isTrue(value)
                            ? arguments.get(0, "default_value", "")
                            : value;
            case "tojson" -> toJson(scope.run, value, arguments);
            case "indent" -> indent(scope.run, string(value), arguments);
            case "map" -> map(scope, items(value), arguments);
            case "selectattr", "rejectattr", "select", "reject" ->
                    select(scope, name, items(value), arguments);
            default -> throw error("the filter %s is not supported", name);
        };
    }

    private static String toJson(Run run, @Nullable Object value, Arguments arguments) {
        Object indent = arguments.get(1, "indent", null);
        String text =
                json(
                        value,
                        indent == null ? null : " ".repeat((int) Math.min(16, integer(indent))),
                        "");
        run.spend(text.length());
        return text;
    }

    private static String indent(Run run, String text, Arguments arguments) {
        String margin = " ".repeat((int) Math.min(64, integer(arguments.get(0, "width", 4L))));
        boolean first = isTrue(arguments.get(1, "first", false));
        boolean blank = isTrue(arguments.get(2, "blank", false));
        StringJoiner all = new StringJoiner("\n");
        boolean begins = true;
        for (String line : text.split("\n", -1)) {
            all.add((begins ? first : blank || !line.isEmpty()) ? margin + line : line);
            run.spend(margin.length());
            begins = false;
        }
        return all.toString();
    }

    private static long toInteger(@Nullable Object value) {
        try {
            return value instanceof Number number
                    ? number.longValue()
                    : Long.parseLong(strip(string(value), null, true, true));
        } catch (NumberFormatException e) {
            return 0;
        }
    }

    private static List<@Nullable Object> sorted(@Nullable Object value) {
        if (!(value instanceof Map<?, ?> map)) {
            throw error("dictsort needs a map, not %s", describe(value));
        }
        List<@Nullable Object> all = parts(map, "items");
        all.sort((a, b) -> key(a).compareTo(key(b)));
        return all;
    }

    private static String key(@Nullable Object pair) {
        return text(items(pair).get(0)).toLowerCase(Locale.ROOT);
    }

    private static List<@Nullable Object> map(
            Scope scope, List<@Nullable Object> list, Arguments arguments) {
        Object attribute = arguments.named().get("attribute");
        List<@Nullable Object> all = new ArrayList<>();
        for (Object each : list) {
            all.add(
                    attribute != null
                            ? path(each, string(attribute))
                            : filter(
                                    scope,
                                    text(arguments.get(0, "filter", null)),
                                    each,
                                    after(arguments, 1)));
        }
        return all;
    }

    private static @Nullable Object path(@Nullable Object object, String names) {
        Object value = object;
        for (String name : names.split("\\.")) {
            value = item(value, name);
        }
        return value;
    }

    private static Arguments after(Arguments arguments, int count) {
        List<@Nullable Object> list = arguments.list();
        return new Arguments(list.subList(Math.min(count, list.size()), list.size()), Map.of());
    }

    private static List<@Nullable Object> select(
            Scope scope, String name, List<@Nullable Object> list, Arguments arguments) {
        int names = name.endsWith("attr") ? 1 : 0;
        Object test = arguments.get(names, "test", null);
        List<@Nullable Object> all = new ArrayList<>();
        for (Object each : list) {
            Object value = names == 1 ? path(each, text(arguments.get(0, "attr", null))) : each;
            boolean found =
                    test == null
                            ? isTrue(value)
                            : test(scope, text(test), value, after(arguments, names + 1));
            if (found == name.startsWith("select")) {
                all.add(each);
            }
        }
        return all;
    }

    static boolean test(Scope scope, String name, @Nullable Object value, Arguments arguments) {
        Object other = arguments.get(0, "other", null);
        return switch (name) {
            case "defined" -> !(value instanceof Undefined);
            case "undefined" -> value instanceof Undefined;
            case "none" -> value == null;
            case "string" -> value instanceof String;
            case "boolean" -> value instanceof Boolean;
            case "true" -> Boolean.TRUE.equals(value);
            case "false" -> Boolean.FALSE.equals(value);
            case "number" -> value instanceof Number || value instanceof Boolean;
            case "integer" -> value instanceof Long;
            case "float" -> value instanceof Double;
            case "mapping" -> value instanceof Map && !(value instanceof Namespace);
            case "iterable", "sequence" ->
                    value instanceof String
                            || value instanceof List
                            || value instanceof Undefined
                            || value instanceof Map && !(value instanceof Namespace);
            case "callable" -> value instanceof Function;
            case "odd" -> Math.floorMod(integer(value), 2) == 1;
            case "even" -> Math.floorMod(integer(value), 2) == 0;
            case "divisibleby" -> Math.floorMod(integer(value), integer(other)) == 0;
            case "equalto", "eq", "==" -> compare(scope.run, "==", value, other);
            case "ne" -> compare(scope.run, "!=", value, other);
            case "in" -> compare(scope.run, "in", value, other);
            default -> throw error("the test %s is not supported", name);
        };
    }
}
