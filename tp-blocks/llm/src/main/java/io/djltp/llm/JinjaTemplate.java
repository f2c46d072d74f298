package io.djltp.llm;

import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

import java.time.LocalDateTime;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

/**
 * A template in the part of the language Jinja that chat templates use, with the settings of
 * transformers: {@code trim_blocks}, {@code lstrip_blocks}, and its functions. Values are null,
 * booleans, Long, Double, String, List, Map, {@link Function} and {@link Undefined}; nothing else
 * can be reached from a template. Jinjava 2.8 of HubSpot (28 jars, 10 MB) renders 80 of the 175
 * cases of this class's test as Python does. It differs in loops with conditions, slices, keyword
 * arguments and the texts of values.
 */
final class JinjaTemplate {

    private final String file;
    private final Node body;

    private JinjaTemplate(String file, Node body) {
        this.file = file;
        this.body = body;
    }

    /** What an expression becomes: gives a value. */
    interface Expression {
        @Nullable Object eval(Scope scope);
    }

    /** What a text or a statement becomes: writes to the output, and says where to go on. */
    interface Node {
        Flow run(Scope scope);
    }

    /** Where to go on. */
    enum Flow {
        NEXT,
        BREAK,
        CONTINUE
    }

    /** Arguments of a call: those without a name, and those with one; and which were used. */
    record Arguments(
            List<@Nullable Object> list, Map<String, @Nullable Object> named, Set<Object> used) {

        Arguments(List<@Nullable Object> list, Map<String, @Nullable Object> named) {
            this(list, named, new HashSet<>());
        }

        @Nullable Object get(int place, String name, @Nullable Object byDefault) {
            boolean listed = place < list.size();
            used.add(listed ? place : name);
            return listed ? list.get(place) : named.getOrDefault(name, byDefault);
        }

        /** Checks that a call has used all arguments. */
        void check(String name) {
            for (int i = 0; i < list.size(); i++) {
                Errors.check(used.contains(i), "%s does not take %s arguments", name, list.size());
            }
            for (String each : named.keySet()) {
                Errors.check(used.contains(each), "%s does not take the argument %s", name, each);
            }
        }
    }

    /** A function, a method with its object, or a macro. */
    interface Function {
        @Nullable Object call(Scope scope, Arguments arguments);
    }

    /** A value that is not there. */
    record Undefined(String name) {}

    /** An object whose attributes can be set. */
    static final class Namespace extends LinkedHashMap<String, @Nullable Object> {

        private static final long serialVersionUID = 1L;
    }

    /** Variables, and what all scopes of a rendering share. */
    static final class Scope {

        final @Nullable Scope parent;
        final JinjaValues run;
        private final Map<String, @Nullable Object> values = new HashMap<>();

        Scope(@Nullable Scope parent, JinjaValues run) {
            this.parent = parent;
            this.run = run;
        }

        @Nullable Object get(String name) {
            for (Scope scope = this; scope != null; scope = scope.parent) {
                if (scope.values.containsKey(name)) {
                    return scope.values.get(name);
                }
            }
            return new Undefined(name);
        }

        void set(String name, @Nullable Object value) {
            values.put(name, value);
        }

        /** Runs a body in a scope of its own, and returns what it writes. */
        String capture(Node body) {
            StringBuilder outer = run.out;
            run.out = new StringBuilder();
            try {
                body.run(new Scope(this, run));
                return run.out.toString();
            } finally {
                run.out = outer;
            }
        }
    }

    /**
     * Reads a template.
     *
     * @param file where it comes from, for messages
     * @throws IllegalArgumentException if it is not valid, or uses what is not supported
     */
    static JinjaTemplate parse(String file, String source) {
        JinjaParser parser = new JinjaParser(source);
        try {
            return new JinjaTemplate(file, parser.parse());
        } catch (IllegalArgumentException e) {
            throw failure(file, parser.line(), e.getMessage(), e);
        } catch (StackOverflowError e) {
            throw failure(file, parser.line(), "the nesting is too deep", e);
        }
    }

    private static IllegalArgumentException failure(
            String file, int line, @Nullable String message, Throwable cause) {
        return new IllegalArgumentException(
                "The chat template of " + file + ", line " + line + ": " + message, cause);
    }

    /**
     * Renders the template.
     *
     * @throws IllegalArgumentException if the template raises an exception or cannot go on
     */
    String render(Map<String, ?> variables) {
        JinjaValues run = new JinjaValues();
        Scope globals = new Scope(null, run);
        globals.set(
                "raise_exception",
                (Function)
                        (scope, arguments) -> {
                            Object message = arguments.get(0, "message", "");
                            throw new IllegalArgumentException(run.string(message));
                        });
        globals.set("strftime_now", (Function) JinjaTemplate::now);
        globals.set(
                "namespace",
                (Function)
                        (scope, arguments) -> {
                            Namespace namespace = new Namespace();
                            arguments
                                    .named()
                                    .keySet()
                                    .forEach(
                                            key -> namespace.put(key, arguments.get(0, key, null)));
                            return namespace;
                        });
        globals.set("range", (Function) JinjaTemplate::range);
        variables.forEach((name, value) -> globals.set(name, JinjaValues.of(value)));
        try {
            body.run(new Scope(globals, run));
            return run.out.toString();
        } catch (IllegalArgumentException | ArithmeticException e) {
            throw failure(file, run.line, e.getMessage(), e);
        } catch (StackOverflowError e) {
            throw failure(file, run.line, "the nesting is too deep", e);
        }
    }

    private static String now(Scope scope, Arguments arguments) {
        String format = JinjaValues.text(arguments.get(0, "format", null));
        scope.run.spend(20L * format.length());
        Errors.check(
                format.matches("([^%]|%[%aAbBdHIjmMSyY])*"),
                "strftime_now has the format %s; known are %%a %%A %%b %%B %%d %%H %%I %%j %%m %%M"
                        + " %%S %%y %%Y",
                format);
        String java = format.replaceAll("%([aAbBdHIjmMSyY])", "%1\\$t$1");
        return String.format(Locale.ENGLISH, java, LocalDateTime.now());
    }

    private static List<@Nullable Object> range(Scope scope, Arguments arguments) {
        boolean one = arguments.list().size() == 1;
        long from = one ? 0 : JinjaValues.integer(arguments.get(0, "start", null));
        long to = JinjaValues.integer(arguments.get(one ? 0 : 1, "stop", null));
        long step = JinjaValues.integer(arguments.get(2, "step", 1L));
        Errors.check(step != 0, "the step of range is 0");
        List<@Nullable Object> list = new ArrayList<>();
        for (long i = from; step > 0 ? i < to : i > to; i = Math.addExact(i, step)) {
            scope.run.spend(10);
            list.add(i);
        }
        return list;
    }
}
