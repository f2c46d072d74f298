package io.djltp.llm;

import io.djltp.llm.JinjaTemplate.Arguments;
import io.djltp.llm.JinjaTemplate.Function;
import io.djltp.llm.JinjaTemplate.Namespace;
import io.djltp.llm.JinjaTemplate.Undefined;

import org.jspecify.annotations.Nullable;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.StringJoiner;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;

/**
 * A rendering of a {@link JinjaTemplate}: its output, and what operators, filters, tests and
 * methods do, as in Python. Each of them spends a part of a budget, which bounds time and memory.
 */
final class JinjaValues {

    private static final long BUDGET = 50_000_000;
    static final String SPACE = "[\\s\\p{Z}\\x1c-\\x1f\\x85]+";
    private static final Set<String> METHODS =
            Set.of(
                    ("strip lstrip rstrip startswith endswith split join replace find upper lower"
                                    + " capitalize title")
                            .split(" "));

    private static final List<String> PYTHON = List.of(", ", ": "); // between the parts of a list

    StringBuilder out = new StringBuilder();
    int line;
    private long left = BUDGET;

    static IllegalArgumentException error(String message, @Nullable Object... values) {
        return new IllegalArgumentException(message.formatted(values));
    }

    void spend(long size) {
        left -= size;
        if (left < 0) {
            throw error("the template makes more than %d characters and steps", BUDGET);
        }
    }

    // ---- types

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
        if (isKey(value)) {
            return value;
        }
        throw error("a variable is %s: use strings, numbers, lists, maps", describe(value));
    }

    /** Returns whether a value can be a key of a map. */
    private static boolean isKey(@Nullable Object value) {
        return value == null
                || value instanceof String
                || value instanceof Boolean
                || value instanceof Long
                || value instanceof Double;
    }

    static @Nullable Object key(@Nullable Object value) {
        if (isKey(value)) {
            return value;
        }
        throw error("%s cannot be a key", describe(value));
    }

    static String describe(@Nullable Object value) {
        if (value instanceof Undefined missing) {
            return "'" + missing.name() + "', which is undefined,";
        }
        return value == null ? "None" : "a " + value.getClass().getSimpleName();
    }

    boolean isTrue(@Nullable Object value) {
        spend(1);
        if (value instanceof Number number) {
            return number.doubleValue() != 0;
        }
        return !(value instanceof Undefined || Boolean.FALSE.equals(value) || size(value) == 0);
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

    private static boolean isMap(@Nullable Object value) {
        return value instanceof Map && !(value instanceof Namespace);
    }

    private static long size(@Nullable Object value) {
        if (value instanceof String text) {
            return text.length();
        }
        return value instanceof List<?> list
                ? list.size()
                : value instanceof Map<?, ?> map ? map.size() : value == null ? 0 : 1;
    }

    /** Returns what a loop goes over. */
    List<@Nullable Object> items(@Nullable Object value) {
        spend(1 + size(value));
        if (value instanceof List<?> list) {
            return Collections.unmodifiableList(list);
        }
        if (value instanceof Map<?, ?> map) {
            return new ArrayList<>(map.keySet());
        }
        if (value instanceof String text) {
            spend(20L * text.length());
            return new ArrayList<>(text.codePoints().mapToObj(Character::toString).toList());
        }
        if (value instanceof Undefined) {
            return List.of();
        }
        throw error("%s cannot be gone over", describe(value));
    }

    // ---- texts of values

    /** Returns a value as Python's str has it. */
    String string(@Nullable Object value) {
        return value instanceof String text
                ? text
                : value instanceof Undefined ? "" : write(value, false, PYTHON, null, "");
    }

    /** Writes a value as JSON or as Python's repr, which is on one line. */
    private String write(
            @Nullable Object value,
            boolean json,
            List<String> separators,
            @Nullable String indent,
            String margin) {
        String text;
        String inner = indent == null ? "" : "\n" + margin + indent;
        String comma = separators.get(0) + inner;
        String end = indent == null ? "" : "\n" + margin;
        String deeper = indent == null ? "" : margin + indent;
        if (value instanceof String string) {
            text = json ? quoteJson(string) : quote(string);
        } else if (value instanceof List<?> list) {
            StringJoiner all = new StringJoiner(comma, "[" + inner, end + "]").setEmptyValue("[]");
            list.forEach(each -> all.add(write(each, json, separators, indent, deeper)));
            text = all.toString();
        } else if (value instanceof Map<?, ?> map && isMap(value)) {
            StringJoiner all = new StringJoiner(comma, "{" + inner, end + "}").setEmptyValue("{}");
            map.forEach(
                    (key, each) -> {
                        Object name = json ? string(key) : key;
                        String before = write(name, json, separators, null, "");
                        all.add(
                                before
                                        + separators.get(1)
                                        + write(each, json, separators, indent, deeper));
                    });
            text = all.toString();
        } else if (value instanceof Number number) {
            text = number(number);
        } else if (value == null) {
            text = json ? "null" : "None";
        } else if (value instanceof Boolean) {
            text = json ? value.toString() : value.equals(true) ? "True" : "False";
        } else {
            throw error("%s has no text", describe(value));
        }
        spend(text.length());
        return text;
    }

    private static String quote(String text) {
        char quote = text.contains("'") && !text.contains("\"") ? '"' : '\'';
        String escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t");
        escaped = escaped.replace("\r", "\\r");
        return quote + (quote == '"' ? escaped : escaped.replace("'", "\\'")) + quote;
    }

    private static String quoteJson(String text) {
        StringBuilder all = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            int known = "\"\\\n\r\t\b\f".indexOf(c);
            if (known >= 0) {
                all.append('\\').append("\"\\nrtbf".charAt(known));
            } else {
                all.append(c < ' ' ? "\\u%04x".formatted((int) c) : c);
            }
        }
        return all.append('"').toString();
    }

    private static String number(Number value) {
        String text = value.toString();
        double size = Math.abs(value.doubleValue());
        if (value instanceof Double && size >= 1e-4 && size < 1e16) {
            text = new BigDecimal(text).stripTrailingZeros().toPlainString();
            return text.contains(".") ? text : text + ".0";
        }
        int e = text.indexOf('E');
        return e < 0
                ? text
                : text.substring(0, e).replaceAll("\\.0$", "")
                        + "e%+03d".formatted(Integer.valueOf(text.substring(e + 1)));
    }

    // ---- operators

    private boolean equal(@Nullable Object left, @Nullable Object right) {
        spend(1 + size(left));
        if (left instanceof Number first && right instanceof Number second) {
            return first.doubleValue() == second.doubleValue();
        }
        if (left instanceof List<?> first && right instanceof List<?> second) {
            boolean same = first.size() == second.size();
            for (int i = 0; same && i < first.size(); i++) {
                same = equal(first.get(i), second.get(i));
            }
            return same;
        }
        if (left instanceof Map<?, ?> first && right instanceof Map<?, ?> second) {
            return first.size() == second.size()
                    && second.keySet().containsAll(first.keySet())
                    && first.keySet().stream().allMatch(k -> equal(first.get(k), second.get(k)));
        }
        return left instanceof Undefined ? right instanceof Undefined : Objects.equals(left, right);
    }

    boolean compare(String operator, @Nullable Object left, @Nullable Object right) {
        if (operator.equals("in")) {
            if (right instanceof String text) {
                return find(text, left) >= 0;
            }
            return right instanceof Map<?, ?> map
                    ? map.containsKey(key(left))
                    : items(right).stream().anyMatch(each -> equal(each, left));
        }
        if (operator.equals("==") || operator.equals("!=")) {
            return equal(left, right) == operator.equals("==");
        }
        int order;
        if (left instanceof Number first && right instanceof Number second) {
            order = Double.compare(first.doubleValue(), second.doubleValue());
        } else if (left instanceof String first && right instanceof String second) {
            spend(1L + first.length());
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

    Object compute(String operator, @Nullable Object left, @Nullable Object right) {
        spend(1 + size(left) + size(right));
        if (operator.equals("~")) {
            return string(left) + string(right);
        }
        if (left instanceof Long a && right instanceof Long b && !operator.equals("/")) {
            return switch (operator) {
                case "+" -> Math.addExact(a, b);
                case "-" -> Math.subtractExact(a, b);
                case "*" -> Math.multiplyExact(a, b);
                case "//" -> Math.floorDiv(a, b);
                default -> Math.floorMod(a, b);
            };
        }
        if (left instanceof Number first
                && right instanceof Number second
                && "+-*/".contains(operator)) {
            double a = first.doubleValue();
            double b = second.doubleValue();
            if (operator.equals("/") && b == 0) {
                throw error("division by zero");
            }
            return switch (operator) {
                case "+" -> a + b;
                case "-" -> a - b;
                case "*" -> a * b;
                default -> a / b;
            };
        }
        if (operator.equals("+") && left instanceof String a && right instanceof String b) {
            return a + b;
        }
        if (operator.equals("+") && left instanceof List<?> a && right instanceof List<?> b) {
            List<@Nullable Object> all = new ArrayList<>(a);
            all.addAll(b);
            return all;
        }
        if (operator.equals("*") && left instanceof String text && right instanceof Long times) {
            spend(Math.multiplyExact(text.length(), Math.max(0, times)));
            return text.repeat(Math.max(0, times.intValue()));
        }
        throw error("%s %s %s is not possible", describe(left), operator, describe(right));
    }

    // ---- parts of values

    @Nullable Object item(@Nullable Object object, @Nullable Object key) {
        if (key instanceof Long index && (object instanceof List || object instanceof String)) {
            List<?> list = object instanceof List<?> known ? known : items(object);
            long place = index < 0 ? index + list.size() : index;
            return place >= 0 && place < list.size()
                    ? list.get((int) place)
                    : new Undefined("[" + index + "]");
        }
        if (object instanceof Map<?, ?> map && map.containsKey(key(key))) {
            return map.get(key);
        }
        return attribute(object, string(key));
    }

    /** Returns a part of a list or string, of [from, to, step]. */
    @Nullable Object slice(@Nullable Object object, List<@Nullable Object> bounds) {
        List<@Nullable Object> list = items(object);
        Object from = bounds.get(0);
        Object to = bounds.get(1);
        long step = bounds.get(2) == null ? 1 : integer(bounds.get(2));
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
        return object instanceof String ? join(part, "") : part;
    }

    private static long bound(Object index, List<?> list, long least, long most) {
        long place = integer(index);
        place += place < 0 ? list.size() : 0;
        return Math.max(least, Math.min(most, place));
    }

    @Nullable Object attribute(@Nullable Object object, String name) {
        if (object instanceof Undefined missing) {
            throw error("'%s' is undefined, and has no %s", missing.name(), name);
        }
        if (object instanceof Map<?, ?> map) {
            if (isMap(object) && Set.of("items", "keys", "values").contains(name)) {
                return (Function) (scope, arguments) -> parts(map, name);
            }
            if (isMap(object) && name.equals("get")) {
                return (Function)
                        (scope, arguments) -> {
                            Object key = key(arguments.get(0, "key", null));
                            Object byDefault = arguments.get(1, "default", null);
                            return map.containsKey(key) ? map.get(key) : byDefault;
                        };
            }
            return map.containsKey(name) ? map.get(name) : new Undefined(name);
        }
        if (object instanceof String text && METHODS.contains(name)) {
            return (Function) (scope, arguments) -> method(text, name, arguments);
        }
        return new Undefined(name);
    }

    private List<@Nullable Object> parts(Map<?, ?> map, String name) {
        spend(1 + 10L * map.size());
        List<@Nullable Object> parts = new ArrayList<>();
        map.forEach(
                (key, value) ->
                        parts.add(
                                name.equals("keys")
                                        ? key
                                        : name.equals("values")
                                                ? value
                                                : Arrays.asList(key, value)));
        return parts;
    }

    // ---- methods of strings

    private @Nullable Object method(String text, String name, Arguments arguments) {
        spend(1L + text.length());
        Object first = arguments.get(0, name.equals("split") ? "sep" : "", null);
        return switch (name) {
            case "strip" -> strip(text, first, true, true);
            case "lstrip" -> strip(text, first, true, false);
            case "rstrip" -> strip(text, first, false, true);
            case "startswith" -> any(first).stream().anyMatch(each -> text.startsWith(text(each)));
            case "endswith" -> any(first).stream().anyMatch(each -> text.endsWith(text(each)));
            case "split" -> split(text, first, integer(arguments.get(1, "maxsplit", -1L)));
            case "join" -> join(items(first), text);
            case "replace" ->
                    replace(
                            text,
                            text(first),
                            text(arguments.get(1, "new", null)),
                            arguments.get(2, "count", null));
            case "find" -> find(text, first);
            case "upper" -> text.toUpperCase(Locale.ROOT);
            case "lower" -> text.toLowerCase(Locale.ROOT);
            case "capitalize" -> capitalize(text);
            default -> title(text, "\\p{L}+");
        };
    }

    private static String title(String text, String word) {
        return Pattern.compile(word)
                .matcher(text)
                .replaceAll(each -> Matcher.quoteReplacement(capitalize(each.group())));
    }

    private List<@Nullable Object> any(@Nullable Object texts) {
        return texts instanceof List ? items(texts) : List.of(text(texts));
    }

    /** Spends what a search in a text for another one may take. */
    private void search(String text, String part) {
        spend(text.length() * (1 + part.length() / 32L));
    }

    private long find(String text, @Nullable Object part) {
        search(text, text(part));
        return text.indexOf(text(part));
    }

    /** As Python's str.isspace. */
    private static boolean isSpace(char c) {
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

    private List<@Nullable Object> split(String text, @Nullable Object at, long most) {
        int limit = most < 0 ? -1 : (int) Math.min(most + 1, Integer.MAX_VALUE);
        List<@Nullable Object> parts = new ArrayList<>();
        if (at == null) {
            Collections.addAll(parts, strip(text, null, true, false).split(SPACE, limit));
            if ("".equals(parts.get(parts.size() - 1))) {
                parts.remove(parts.size() - 1);
            }
        } else if (text(at).isEmpty()) {
            throw error("the separator is empty");
        } else {
            search(text, text(at));
            Collections.addAll(parts, text.split(Pattern.quote(text(at)), limit));
        }
        spend(10L * parts.size());
        return parts;
    }

    private String join(List<@Nullable Object> parts, String between) {
        StringJoiner all = new StringJoiner(between);
        for (Object part : parts) {
            String text = string(part);
            spend(text.length() + between.length());
            all.add(text);
        }
        return all.toString();
    }

    private String replace(String text, String old, String by, @Nullable Object count) {
        search(text, old);
        if (by.length() > old.length()) {
            long places = old.isEmpty() ? text.length() + 1L : text.length() / old.length();
            spend(Math.multiplyExact(places, by.length()));
        }
        long most = count == null ? -1 : integer(count);
        if (most < 0) {
            return text.replace(old, by);
        }
        Matcher places = Pattern.compile(Pattern.quote(old)).matcher(text);
        StringBuilder all = new StringBuilder();
        for (long i = 0; i < most && places.find(); i++) {
            places.appendReplacement(all, Matcher.quoteReplacement(by));
        }
        return places.appendTail(all).toString();
    }

    private static String capitalize(String text) {
        return text.isEmpty()
                ? text
                : text.substring(0, 1).toUpperCase(Locale.ROOT)
                        + text.substring(1).toLowerCase(Locale.ROOT);
    }

    // ---- filters and tests

    @Nullable Object filter(String name, @Nullable Object value, Arguments arguments) {
        spend(1 + size(value));
        Object result =
                switch (name) {
                    case "trim" ->
                            strip(string(value), arguments.get(0, "chars", null), true, true);
                    case "string", "safe" -> string(value);
                    case "title" -> title(string(value), "[^-\\s({\\[<]+");
                    case "upper", "lower", "capitalize", "replace" ->
                            method(string(value), name, arguments);
                    case "length", "count" ->
                            value instanceof String text
                                    ? (long) text.codePointCount(0, text.length())
                                    : (long) items(value).size();
                    case "list" -> new ArrayList<>(items(value));
                    case "first" -> item(items(value), 0L);
                    case "last" -> item(items(value), -1L);
                    case "reverse" -> slice(value, Arrays.asList(null, null, -1L));
                    case "items" -> value instanceof Map<?, ?> map ? parts(map, name) : List.of();
                    case "dictsort" -> sorted(value);
                    case "int" -> toInteger(value, arguments.get(0, "default", 0L));
                    case "join" -> join(items(value), string(arguments.get(0, "d", "")));
                    case "default", "d" -> {
                        Object other = arguments.get(0, "default_value", "");
                        boolean alsoFalse = isTrue(arguments.get(1, "boolean", false));
                        yield value instanceof Undefined || alsoFalse && !isTrue(value)
                                ? other
                                : value;
                    }
                    case "tojson" -> {
                        if (isTrue(arguments.get(0, "ensure_ascii", false))
                                || isTrue(arguments.get(3, "sort_keys", false))) {
                            throw error("ensure_ascii and sort_keys of tojson are not supported");
                        }
                        Object indent = arguments.get(1, "indent", null);
                        Object between = arguments.get(2, "separators", null);
                        String margin = indent == null ? null : margin(indent);
                        List<String> separators =
                                between == null
                                        ? List.of(margin == null ? ", " : ",", ": ")
                                        : items(between).stream().map(JinjaValues::text).toList();
                        yield write(value, true, separators, margin, "");
                    }
                    case "indent" -> indent(string(value), arguments);
                    case "map", "selectattr", "rejectattr", "select", "reject" ->
                            each(name, items(value), arguments);
                    default -> throw error("the filter %s is not supported", name);
                };
        arguments.check(name);
        return result;
    }

    private static String margin(@Nullable Object width) {
        return " ".repeat((int) Math.max(0, Math.min(16, integer(width))));
    }

    private String indent(String text, Arguments arguments) {
        String margin = margin(arguments.get(0, "width", 4L));
        String first = isTrue(arguments.get(1, "first", false)) ? margin : "";
        spend(text.length() * (1L + margin.length()));
        boolean blank = isTrue(arguments.get(2, "blank", false));
        return first + text.replaceAll(blank ? "\n" : "\n(?=[^\n])", "\n" + margin);
    }

    private @Nullable Object toInteger(@Nullable Object value, @Nullable Object byDefault) {
        try {
            return value instanceof Number number
                    ? number.longValue()
                    : Long.parseLong(strip(string(value), null, true, true));
        } catch (NumberFormatException e) {
            return byDefault;
        }
    }

    private List<@Nullable Object> sorted(@Nullable Object value) {
        if (!(value instanceof Map<?, ?> map)) {
            throw error("dictsort needs a map, not %s", describe(value));
        }
        List<@Nullable Object> all = parts(map, "items");
        all.sort((a, b) -> text(item(a, 0L)).compareToIgnoreCase(text(item(b, 0L))));
        return all;
    }

    /** Maps items to an attribute or by a filter, or selects them by a test. */
    private List<@Nullable Object> each(
            String name, List<@Nullable Object> items, Arguments arguments) {
        int used = name.endsWith("attr") ? 1 : 0;
        Object path =
                used == 1
                        ? arguments.get(0, "attr", null)
                        : arguments.get(Integer.MAX_VALUE, "attribute", null);
        Object known = arguments.get(used, "name", null);
        List<@Nullable Object> list = arguments.list();
        Arguments rest =
                new Arguments(list.subList(Math.min(used + 1, list.size()), list.size()), Map.of());
        IntStream.range(0, list.size()).forEach(arguments.used()::add); // by rest
        List<@Nullable Object> all = new ArrayList<>();
        for (Object item : items) {
            Object value = item;
            for (String part : path == null ? new String[0] : text(path).split("\\.")) {
                value = item(value, part);
            }
            if (name.equals("map")) {
                all.add(known == null ? value : filter(text(known), value, rest));
            } else if ((known == null ? isTrue(value) : test(text(known), value, rest))
                    == name.startsWith("select")) {
                all.add(item);
            }
        }
        return all;
    }

    boolean test(String name, @Nullable Object value, Arguments arguments) {
        Object other = arguments.get(0, "other", null);
        boolean result =
                switch (name) {
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
                    case "mapping" -> isMap(value);
                    case "iterable", "sequence" ->
                            value instanceof String
                                    || value instanceof List
                                    || value instanceof Undefined
                                    || isMap(value);
                    case "odd" -> Math.floorMod(integer(value), 2) == 1;
                    case "even" -> Math.floorMod(integer(value), 2) == 0;
                    case "equalto", "eq", "==" -> equal(value, other);
                    case "ne" -> !equal(value, other);
                    case "in" -> compare("in", value, other);
                    default -> throw error("the test %s is not supported", name);
                };
        arguments.check(name);
        return result;
    }
}
