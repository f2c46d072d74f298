package io.djltp.exchange;

import ai.djl.ndarray.types.Shape;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.function.Function;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Which tensor of a file is which parameter of a block tree: a table, one line a rule.
 *
 * <pre>
 * {path}.layer{n}.mlp.down.weight = model.layers.{n}.mlp.down_proj.weight
 * {path}.layer{n}.mlp.gateUp.weight = model.layers.{n}.mlp.gate_proj.weight + model.layers.{n}.mlp.up_proj.weight
 * {path}.*Embedding.embedding     = model.embed_tokens.weight : padded
 * ignore {path}.rotary_emb.inv_freq
 * </pre>
 *
 * <ul>
 *   <li>Left are parameters by their {@linkplain ParameterPaths path}: the names of the blocks
 *       without DJL's counts, numbered from 0 where siblings have the same, and dots between them.
 *       Right are tensors. {@code {n}} is a number (of a stack of one layer: none), {@code {path}}
 *       any blocks, or none, {@code *} any letters of one block's name.
 *   <li>{@code a + b} are rows one below the other (axis 0). {@code a * 4 + b * 2}: of 6 parts of
 *       the rows a has 4, b 2; without numbers all have the same.
 *   <li>{@code : transposed} for a tensor [in, out] of a weight [out, in]. {@code : padded} for a
 *       vocabulary with rows to spare: what the parameter has no row for is not read, what the
 *       tensor has no row for is 0.
 *   <li>{@code ignore} names tensors that need no parameter. {@code #} begins a comment.
 * </ul>
 *
 * <p>Of several rules for a parameter the first counts whose tensors are in the file; what is
 * written has the names of the first.
 */
public final class NameMapping {

    private final List<Rule> rules;
    private final List<NamePattern> ignored;

    private NameMapping(List<Rule> rules, List<NamePattern> ignored) {
        this.rules = List.copyOf(rules);
        this.ignored = List.copyOf(ignored);
    }

    /**
     * Reads a table.
     *
     * @param table the table
     * @return the mapping
     * @throws IllegalArgumentException if a line is none
     */
    public static NameMapping parse(String table) {
        List<Rule> rules = new ArrayList<>();
        List<NamePattern> ignored = new ArrayList<>();
        for (String line : table.split("\n")) {
            String text = line.replaceFirst("#.*", "").trim();
            if (text.startsWith("ignore ")) {
                ignored.add(Rule.name(text, text.substring("ignore ".length()).trim()));
            } else if (!text.isEmpty()) {
                rules.add(Rule.parse(text));
            }
        }
        return new NameMapping(rules, ignored);
    }

    /**
     * Returns the names that PyTorch gives the parameters of blocks with the names of ours: {@code
     * weight} and {@code bias} of linear layers and norms, {@code weight} of embeddings.
     *
     * @return the mapping
     */
    public static NameMapping torch() {
        return read("torch.names", 1, 1);
    }

    /**
     * Returns the parameters by their own paths.
     *
     * @return the mapping
     */
    public static NameMapping own() {
        return parse("{path} = {path}");
    }

    /**
     * Returns the names of Hugging Face's {@code BertModel}, for {@link
     * io.djltp.nn.transformer.ParallelTransformerEncoderLayer#bert} layers, queries, keys and
     * values one by one or stacked. A {@code BertForMaskedLM} and others put a word before them:
     * {@code withPrefix("bert.")}.
     *
     * @return the mapping
     */
    public static NameMapping bert() {
        return read("bert.names", 1, 1);
    }

    /**
     * Returns the names of Hugging Face's {@code LlamaForCausalLM}, for {@link
     * io.djltp.nn.transformer.ParallelTransformerDecoderLayer#llama} layers, queries, keys and
     * values one by one or stacked.
     *
     * @param heads the number of query heads, {@code num_attention_heads} in {@code config.json}
     * @param keyValueHeads the number of key/value heads, {@code num_key_value_heads}
     * @return the mapping
     */
    public static NameMapping llama(int heads, int keyValueHeads) {
        return read("llama.names", heads, keyValueHeads);
    }

    private static NameMapping read(String table, int heads, int keyValueHeads) {
        try (InputStream is = NameMapping.class.getResourceAsStream(table)) {
            String text = new String(is.readAllBytes(), StandardCharsets.UTF_8);
            return parse(
                    text.replace("HEADS", Integer.toString(heads))
                            .replace("GROUPS", Integer.toString(keyValueHeads)));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /**
     * Returns a mapping whose first rules are those of another table.
     *
     * @param table the table
     * @return the mapping
     * @throws IllegalArgumentException if a line is none
     */
    public NameMapping with(String table) {
        NameMapping first = parse(table);
        List<Rule> all = new ArrayList<>(first.rules);
        all.addAll(rules);
        List<NamePattern> without = new ArrayList<>(first.ignored);
        without.addAll(ignored);
        return new NameMapping(all, without);
    }

    /**
     * Returns a mapping whose tensors have a word before their names.
     *
     * @param prefix the word, such as {@code bert.}
     * @return the mapping
     */
    public NameMapping withPrefix(String prefix) {
        return new NameMapping(
                rules.stream().map(rule -> rule.withPrefix(prefix)).toList(),
                ignored.stream().map(pattern -> pattern.withPrefix(prefix)).toList());
    }

    /**
     * Returns the rules that name no parameter of a tree: those of other kinds of blocks, and those
     * that are misspelled.
     *
     * @param paths the parameters, as {@link ParameterPaths} says them
     * @return the rules, each as a line of a table
     */
    public List<String> findUnused(Collection<String> paths) {
        Map<String, String> tree = new HashMap<>();
        paths.forEach(path -> tree.put(path, path));
        Set<Rule> used = new HashSet<>();
        for (String path : paths) {
            matches(path, tree).forEach(match -> used.add(match.rule()));
        }
        return rules.stream().filter(rule -> !used.contains(rule)).map(Rule::toString).toList();
    }

    /**
     * Returns what the rules say of a parameter, the first rule first.
     *
     * @param path the path of the parameter
     * @param tree all parameters by path
     * @param <P> what stands for a parameter
     */
    <P> List<Match<P>> matches(String path, Map<String, P> tree) {
        List<Match<P>> matches = new ArrayList<>();
        for (Rule rule : rules) {
            rule.parameters().stream()
                    .map(pattern -> pattern.match(path))
                    .filter(Objects::nonNull)
                    .findFirst()
                    .map(places -> rule.match(places, tree))
                    .ifPresent(matches::add);
        }
        return matches;
    }

    /**
     * Returns the tensor that a parameter is, by the first rule for it whose tensor there is. Rules
     * of several parameters or several tensors do not count.
     *
     * @param path the parameter, as {@link ParameterPaths} says it
     * @param tensors the names of all tensors
     * @return the name of the tensor, or {@code null} if no rule names one of them
     */
    public String findTensor(String path, Collection<String> tensors) {
        return matches(path, Map.of(path, path)).stream()
                .map(Match::tensors)
                .filter(names -> names.size() == 1 && tensors.containsAll(names))
                .map(names -> names.get(0))
                .findFirst()
                .orElse(null);
    }

    List<Rule> rules() {
        return rules;
    }

    /** Returns whether a tensor needs no parameter. */
    boolean isIgnored(String tensor) {
        return ignored.stream().anyMatch(pattern -> pattern.match(tensor) != null);
    }

    /**
     * A line of a {@link NameMapping}: parameters that, one below the other along axis 0, are the
     * same rows as tensors one below the other.
     *
     * @param parameters the parameters
     * @param tensors the tensors
     * @param transposed whether a tensor has the axes of the parameter exchanged
     * @param padded whether the tensor may have more or fewer rows, which do not count
     */
    record Rule(
            List<NamePattern> parameters, List<Part> tensors, boolean transposed, boolean padded) {

        /**
         * A tensor of a rule.
         *
         * @param name its name
         * @param share how many parts of the rows it has, beside the shares of the others
         */
        record Part(NamePattern name, int share) {

            @Override
            public String toString() {
                return name + (share > 1 ? " * " + share : "");
            }
        }

        /** Reads a line, {@code parameter + parameter = tensor * share + tensor : flags}. */
        static Rule parse(String line) {
            Set<String> flags = new HashSet<>();
            String rule = line;
            int colon = line.lastIndexOf(" : ");
            if (colon >= 0) {
                flags.addAll(List.of(line.substring(colon + 3).trim().split("\\s+")));
                rule = line.substring(0, colon);
            }
            String[] sides = rule.split(" = ");
            if (sides.length != 2) {
                throw error(line, "it is not of the form parameter = tensor");
            }
            List<NamePattern> parameters = new ArrayList<>();
            for (String name : sides[0].split(" \\+ ")) {
                parameters.add(name(line, name.trim()));
            }
            List<Part> tensors = new ArrayList<>();
            for (String part : sides[1].split(" \\+ ")) {
                String[] words = part.trim().split(" \\* ");
                int share = words.length == 1 ? 1 : share(line, words[1].trim());
                tensors.add(new Part(name(line, words[0].trim()), share));
            }
            boolean transposed = flags.remove("transposed");
            boolean padded = flags.remove("padded");
            if (!flags.isEmpty()) {
                throw error(line, "there are the flags transposed and padded, and no " + flags);
            }
            if ((padded || transposed) && parameters.size() + tensors.size() > 2) {
                throw error(line, "what is padded or transposed is one parameter and one tensor");
            }
            return checked(
                    line,
                    new Rule(List.copyOf(parameters), List.copyOf(tensors), transposed, padded));
        }

        /** What stands in the places of a tensor's name must be known from the parameters'. */
        private static Rule checked(String line, Rule rule) {
            Set<String> known = new HashSet<>(rule.parameters.get(0).places());
            for (NamePattern other : rule.parameters) {
                if (!other.places().equals(known)) {
                    throw error(line, "its parameters have different places");
                }
            }
            for (Part part : rule.tensors) {
                if (!known.containsAll(part.name().places())) {
                    throw error(line, part.name() + " has places that the parameters do not have");
                }
            }
            return rule;
        }

        /**
         * Returns the rule for the parameters of a block, or null if the block is of another kind.
         */
        private <P> Match<P> match(Map<String, String> places, Map<String, P> tree) {
            List<String> paths =
                    parameters.stream().map(pattern -> pattern.blockName(places)).toList();
            if (!tree.keySet().containsAll(paths)) {
                return null;
            }
            return new Match<>(
                    this,
                    paths,
                    paths.stream().map(tree::get).toList(),
                    tensors.stream().map(part -> part.name().tensorName(places)).toList());
        }

        /** Returns whether a parameter is a tensor as it is. */
        boolean isPlain() {
            return parameters.size() == 1 && tensors.size() == 1 && !transposed && !padded;
        }

        /** Returns the rule for tensors with a word before their names. */
        Rule withPrefix(String prefix) {
            List<Part> parts =
                    tensors.stream()
                            .map(part -> new Part(part.name().withPrefix(prefix), part.share()))
                            .toList();
            return new Rule(parameters, parts, transposed, padded);
        }

        /** Returns a name, which has no blanks: they stand around what is between names. */
        static NamePattern name(String line, String text) {
            NamePattern name = new NamePattern(text);
            if (!text.matches("[^\\s+]\\S*")) {
                throw error(line, "'" + text + "' is no name");
            }
            return name;
        }

        /** Returns the rule as a line of a table. */
        @Override
        public String toString() {
            return String.join(" + ", parameters.stream().map(NamePattern::toString).toList())
                    + " = "
                    + String.join(" + ", tensors.stream().map(Part::toString).toList())
                    + (transposed || padded ? " :" : "")
                    + (transposed ? " transposed" : "")
                    + (padded ? " padded" : "");
        }

        private static int share(String line, String text) {
            if (!text.matches("[1-9]\\d{0,8}")) {
                throw error(line, text + " is no share: a number above 0");
            }
            return Integer.parseInt(text);
        }

        private static IllegalArgumentException error(String line, String reason) {
            return new IllegalArgumentException(
                    String.format(
                            Locale.ROOT,
                            "The mapping of names has the line '%s': %s",
                            line,
                            reason));
        }
    }

    /**
     * A rule of a mapping for some parameters of a tree.
     *
     * @param rule the rule
     * @param paths the parameters by path
     * @param parameters the parameters
     * @param tensors the names of the tensors
     * @param <P> what stands for a parameter
     */
    record Match<P>(Rule rule, List<String> paths, List<P> parameters, List<String> tensors) {

        /** Returns the length of axis 0; a scalar is one row. */
        static long rows(Shape shape) {
            return shape.dimension() == 0 ? 1 : shape.get(0);
        }

        /** Returns the rows of the parameters. */
        StackedRows parameterRows(Function<P, Shape> shapes) {
            return new StackedRows(
                    parameters.stream().mapToLong(each -> rows(shapes.apply(each))).toArray());
        }

        /**
         * Returns the rows that each tensor has of so many, or {@code null} if they cannot be
         * shared out.
         */
        long[] tensorRows(long rows) {
            long shares = rule.tensors().stream().mapToLong(Rule.Part::share).sum();
            if (rows % shares != 0) {
                return null;
            }
            return rule.tensors().stream()
                    .mapToLong(part -> rows / shares * part.share())
                    .toArray();
        }
    }

    /**
     * A name with places for what differs: {@code {n}} for a number, {@code {path}} or another word
     * for any number of blocks with their dots, also none, {@code *} for any letters of one block's
     * name.
     */
    static final class NamePattern {

        private static final Pattern PLACE = Pattern.compile("(\\{(\\w+)\\}|\\*)(\\.?)");
        private static final String NUMBER = "n";
        private static final String LETTERS = "letters";

        private final String text;
        private final List<String> places; // each once
        private final Pattern pattern;

        NamePattern(String text) {
            this.text = text;
            places = PLACE.matcher(text).results().map(NamePattern::key).toList();
            if (new HashSet<>(places).size() < places.size()) {
                throw new IllegalArgumentException(
                        "The name "
                                + text
                                + " has a place twice: a place is a number {n}, once, letters *,"
                                + " once, and any blocks {path}, or {word} for others");
            }
            if (!PLACE.matcher(text).replaceAll("").matches("[^{}]*")) {
                throw new IllegalArgumentException(
                        "The name "
                                + text
                                + " has a brace that does not belong to a place: {n}, {path}");
            }
            StringBuilder regex = new StringBuilder();
            Matcher place = PLACE.matcher(text);
            int at = 0;
            while (place.find()) {
                regex.append(Pattern.quote(text.substring(at, place.start())));
                String dot = place.group(3).isEmpty() ? "" : "\\.";
                switch (key(place)) {
                    case LETTERS -> regex.append("([^.]*)").append(dot);
                    // of one layer alone the name of the block has no number
                    case NUMBER -> regex.append("(\\d*)").append(dot);
                    default -> regex.append(dot.isEmpty() ? "(.*)" : "(?:(.+)\\.)?");
                }
                at = place.end();
            }
            pattern = Pattern.compile(regex.append(Pattern.quote(text.substring(at))).toString());
        }

        private static String key(MatchResult place) {
            return place.group(2) == null ? LETTERS : place.group(2);
        }

        /** Returns the places. */
        Set<String> places() {
            return new HashSet<>(places);
        }

        /** Returns the name with a word before it. */
        NamePattern withPrefix(String prefix) {
            return new NamePattern(prefix + text);
        }

        /**
         * Compares a name.
         *
         * @return what stands in the places, or {@code null} if it is another name
         */
        Map<String, String> match(String name) {
            Matcher matcher = pattern.matcher(name);
            if (!matcher.matches()) {
                return null;
            }
            Map<String, String> found = new LinkedHashMap<>();
            for (int i = 0; i < places.size(); i++) { // a group for each place
                found.put(places.get(i), Objects.requireNonNullElse(matcher.group(i + 1), ""));
            }
            return found;
        }

        /**
         * Returns the name with these in its places, as a block's: one layer alone has no number.
         */
        String blockName(Map<String, String> places) {
            return fill(places, places.get(NUMBER));
        }

        /** Returns the name with these in its places, as a tensor's. */
        String tensorName(Map<String, String> places) {
            String number = places.get(NUMBER);
            return fill(places, "".equals(number) ? "0" : number);
        }

        private String fill(Map<String, String> places, String number) {
            return PLACE.matcher(text)
                    .replaceAll(
                            place -> {
                                String key = key(place);
                                String value = key.equals(NUMBER) ? number : places.get(key);
                                boolean blocks = !key.equals(NUMBER) && !key.equals(LETTERS);
                                return blocks && value.isEmpty()
                                        ? ""
                                        : Matcher.quoteReplacement(value + place.group(3));
                            });
        }

        @Override
        public String toString() {
            return text;
        }
    }

    /** Parts whose rows lie one below the other, such as queries, keys and values in one weight. */
    static final class StackedRows {

        private final long[] starts; // of each part, and the end of the last

        /** Creates a stack of parts of these lengths. */
        StackedRows(long... lengths) {
            starts = new long[lengths.length + 1];
            for (int i = 0; i < lengths.length; i++) {
                starts[i + 1] = starts[i] + lengths[i];
            }
        }

        /**
         * Consecutive rows of one part.
         *
         * @param part the number of the part
         * @param from the first row, counted from the part's first
         * @param to the row behind the last
         */
        record Segment(int part, long from, long to) {

            long length() {
                return to - from;
            }
        }

        /** Returns the number of all rows. */
        long total() {
            return starts[starts.length - 1];
        }

        /** Returns where a part begins. */
        long start(int part) {
            return starts[part];
        }

        /** Returns of which parts some rows of the stack are, in their order. */
        List<Segment> segments(long from, long to) {
            List<Segment> segments = new ArrayList<>();
            for (int i = 0; i + 1 < starts.length; i++) {
                long first = Math.max(from, starts[i]);
                long end = Math.min(to, starts[i + 1]);
                if (first < end) {
                    segments.add(new Segment(i, first - starts[i], end - starts[i]));
                }
            }
            return segments;
        }
    }
}
