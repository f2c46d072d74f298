package io.djltp.exchange;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.Preconditions;

import io.djltp.checkpoint.Checkpoint;
import io.djltp.checkpoint.CheckpointException;
import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

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
 *   <li>Left are parameters by their {@linkplain #paths(Block) path}: the names of the blocks
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

    /** What stands for a parameter. */
    interface Shaped {

        Shape shape();
    }

    /** Returns what stands for the parameter of a path, or {@code null}. */
    interface Tree<P extends Shaped> {

        @Nullable P get(String path);
    }

    private final List<Rule> rules = new ArrayList<>();
    private final List<NamePattern> ignored = new ArrayList<>();

    private NameMapping(String table, String prefix) {
        for (String each : table.split("\n")) {
            String line = each.replaceFirst("#.*", "").trim();
            if (line.startsWith("ignore ")) {
                ignored.add(Rule.name(line, prefix, line.substring("ignore ".length())));
            } else if (!line.isEmpty()) {
                rules.add(Rule.parse(line, prefix));
            }
        }
    }

    /**
     * Reads a table.
     *
     * @param table the table
     * @return the mapping
     * @throws IllegalArgumentException if a line is none
     */
    public static NameMapping parse(String table) {
        return new NameMapping(table, "");
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

    /**
     * Returns the names of Hugging Face's {@code Phi3ForCausalLM}, for the blocks of {@link
     * #llama}. {@code llama} reads the same files; this also writes queries, keys and values, and
     * gate and up, as one tensor each.
     *
     * @param heads the number of query heads, {@code num_attention_heads} in {@code config.json}
     * @param keyValueHeads the number of key/value heads, {@code num_key_value_heads}
     * @return the mapping
     */
    public static NameMapping phi3(int heads, int keyValueHeads) {
        NameMapping llama = llama(heads, keyValueHeads);
        Stream<String> stacked =
                llama.rules.stream()
                        .map(Rule::toString)
                        .filter(rule -> rule.matches(".*\\.(qkv|gate_up)_proj\\..*"));
        return llama.with(String.join("\n", stacked.toList()));
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
        return parse(table + "\n" + this);
    }

    /**
     * Returns a mapping whose tensors have a word before their names.
     *
     * @param prefix the word, such as {@code bert.}
     * @return the mapping
     */
    public NameMapping withPrefix(String prefix) {
        return new NameMapping(toString(), prefix);
    }

    /** Returns the table. */
    @Override
    public String toString() {
        StringBuilder table = new StringBuilder();
        rules.forEach(rule -> table.append(rule).append('\n'));
        ignored.forEach(name -> table.append("ignore ").append(name).append('\n'));
        return table.toString();
    }

    /**
     * Returns the rules that name no parameter of a tree: those of other kinds of blocks, and those
     * that are misspelled.
     *
     * @param paths the parameters, as {@link #paths(Block)} says them
     * @return the rules, each as a line of a table
     */
    public List<String> findUnused(Collection<String> paths) {
        Set<Rule> used = new HashSet<>();
        for (String path : paths) {
            matches(path, tree(paths)).forEach(match -> used.add(match.rule()));
        }
        return rules.stream().filter(rule -> !used.contains(rule)).map(Rule::toString).toList();
    }

    /**
     * Returns what the rules say of a parameter, the first rule first.
     *
     * @param path the path of the parameter
     * @param tree returns a parameter by its path, or {@code null}
     * @param <P> what stands for a parameter
     */
    <P extends Shaped> List<Match<P>> matches(String path, Tree<P> tree) {
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
     * Returns the parameters of a block tree by the paths on the left of a mapping.
     *
     * @param block the tree
     * @return the parameters by path, in the order of the tree; one that blocks share under each of
     *     its paths
     */
    public static Map<String, Parameter> paths(Block block) {
        return ParameterPaths.of(block);
    }

    /**
     * Returns the weights of a checkpoint by the paths on the left of a mapping.
     *
     * @param checkpoint the checkpoint
     * @return the names of its tensors by path; of what blocks share under each of its paths
     * @throws CheckpointException if what it says of the trainer is damaged
     */
    public static Map<String, String> paths(Checkpoint checkpoint) throws CheckpointException {
        return ParameterPaths.ofNames(checkpoint.getWeights());
    }

    /**
     * Returns the tensors that a parameter is written to.
     *
     * @param path the path of the parameter
     * @param paths all parameters, as {@link #paths(Block)} says them
     * @return the names, by the first rule for it; none without a rule
     */
    public List<String> getTensors(String path, Collection<String> paths) {
        return matches(path, tree(paths)).stream()
                .findFirst()
                .map(Match::tensors)
                .orElse(List.of());
    }

    /**
     * Returns the tensors that a parameter is read from.
     *
     * @param path the path of the parameter
     * @param paths all parameters, as {@link #paths(Block)} says them
     * @param stored the names of the tensors of a file
     * @return the tensors, by the first rule for it whose tensors the file has
     * @throws IllegalArgumentException if the file has those of no rule
     */
    public Source getSource(String path, Collection<String> paths, Collection<String> stored) {
        List<Match<Shaped>> matches = matches(path, tree(paths));
        return matches.stream()
                .filter(match -> stored.containsAll(match.tensors()))
                .findFirst()
                .map(match -> new Source(match.tensors(), match.rule().transposed()))
                .orElseThrow(
                        () ->
                                Errors.argument(
                                        "There is no tensor for the parameter %s: of %s none is"
                                                + " complete",
                                        path, matches.stream().map(Match::tensors).toList()));
    }

    /**
     * What a parameter is read from.
     *
     * @param tensors the tensors whose rows, one below the other, are the rows of the parameter
     * @param transposed whether the tensor is [in, out], and its columns are these rows
     */
    public record Source(List<String> tensors, boolean transposed) {}

    /** Returns a tree of which only the names count. */
    private static Tree<Shaped> tree(Collection<String> paths) {
        return path -> paths.contains(path) ? Shape::new : null;
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
        static Rule parse(String line, String prefix) {
            int colon = line.lastIndexOf(" : ");
            String[] sides = (colon < 0 ? line : line.substring(0, colon)).split(" = ");
            check(line, sides.length == 2, "it is not of the form parameter = tensor");
            List<NamePattern> parameters =
                    Stream.of(sides[0].split(" \\+ ")).map(name -> name(line, "", name)).toList();
            List<Part> tensors =
                    Stream.of(sides[1].split(" \\+ "))
                            .map(part -> part(line, prefix, part))
                            .toList();
            List<String> words =
                    colon < 0 ? List.of() : List.of(line.substring(colon + 3).trim().split("\\s+"));
            Set<String> flags = new HashSet<>(words);
            boolean transposed = flags.remove("transposed");
            boolean padded = flags.remove("padded");
            check(
                    line,
                    flags.isEmpty(),
                    "there are the flags transposed and padded, and no " + flags);
            check(
                    line,
                    words.isEmpty() || parameters.size() + tensors.size() == 2,
                    "what is padded or transposed is one parameter and one tensor");
            // what stands in the places of a tensor's name is known from the parameters'
            Set<String> known = parameters.get(0).places();
            for (NamePattern other : parameters) {
                check(line, other.isOfBlocks(), "behind a place of blocks is a dot, or nothing");
                check(line, other.places().equals(known), "its parameters have different places");
            }
            for (Part part : tensors) {
                check(
                        line,
                        known.containsAll(part.name().places()),
                        part.name() + " has places that the parameters do not have");
            }
            return new Rule(parameters, tensors, transposed, padded);
        }

        private static Part part(String line, String prefix, String text) {
            String[] words = text.trim().split(" \\* ");
            String share = words.length == 1 ? "1" : words[1].trim();
            check(line, share.matches("[1-9]\\d{0,8}"), share + " is no share: a number above 0");
            return new Part(name(line, prefix, words[0]), Integer.parseInt(share));
        }

        /** Returns a name, which has no blanks: they stand around what is between names. */
        static NamePattern name(String line, String prefix, String text) {
            String name = text.trim();
            NamePattern pattern = new NamePattern(prefix + name);
            check(line, name.matches("[^\\s+]\\S*"), "'" + name + "' is no name");
            return pattern;
        }

        private static void check(String line, boolean right, String reason) {
            Errors.check(right, "The mapping of names has the line '%s': %s", line, reason);
        }

        /**
         * Returns the rule for the parameters of a block, or null if the block is of another kind.
         */
        private <P extends Shaped> @Nullable Match<P> match(
                Map<String, String> places, Tree<P> tree) {
            List<String> paths = parameters.stream().map(each -> each.fill(places, "")).toList();
            List<P> found = new ArrayList<>();
            for (String path : paths) {
                P each = tree.get(path);
                if (each == null) {
                    return null;
                }
                found.add(each);
            }
            // one layer alone has no number in a block's name, and 0 in a tensor's
            List<String> names =
                    tensors.stream().map(part -> part.name().fill(places, "0")).toList();
            return new Match<>(this, paths, found, names);
        }

        /** Returns whether a parameter is a tensor as it is. */
        boolean isPlain() {
            return parameters.size() == 1 && tensors.size() == 1 && !transposed && !padded;
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
    record Match<P extends Shaped>(
            Rule rule, List<String> paths, List<P> parameters, List<String> tensors) {

        /** Returns the length of axis 0; a scalar is one row. */
        static long rows(Shape shape) {
            return shape.dimension() == 0 ? 1 : shape.get(0);
        }

        /** Returns the rows of the parameters, one below the other. */
        StackedRows stacked() {
            return new StackedRows(
                    parameters.stream().mapToLong(each -> rows(each.shape())).toArray());
        }

        /**
         * Returns the shapes of the tensors; a padded one may have other rows.
         *
         * @throws IllegalArgumentException if the rule cannot be one of parameters of these shapes
         */
        List<Shape> tensorShapes() {
            Shape first = parameters.get(0).shape();
            if (rule.isPlain()) {
                return List.of(first);
            }
            Preconditions.checkArgument(first.dimension() > 0, "it has no rows");
            if (rule.transposed()) {
                Preconditions.checkArgument(
                        first.dimension() == 2, "what is transposed has two axes");
                return List.of(new Shape(first.get(1), first.get(0)));
            }
            for (P each : parameters) {
                Preconditions.checkArgument(
                        withRows(each.shape(), 0).equals(withRows(first, 0)),
                        "its parameters differ in more than their rows");
            }
            long rows = stacked().total();
            long shares = rule.tensors().stream().mapToLong(Rule.Part::share).sum();
            Preconditions.checkArgument(
                    rows % shares == 0, rows + " rows are not a multiple of " + shares);
            return rule.tensors().stream()
                    .map(part -> withRows(first, rows / shares * part.share()))
                    .toList();
        }

        /** Returns a shape with another length of axis 0. */
        static Shape withRows(Shape shape, long rows) {
            long[] lengths = shape.getShape().clone();
            if (lengths.length > 0) {
                lengths[0] = rows;
            }
            return new Shape(lengths);
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
            Preconditions.checkArgument(
                    places().size() == places.size(),
                    "The name "
                            + text
                            + " has a place twice: a place is a number {n}, once, letters *,"
                            + " once, and any blocks {path}, or {word} for others");
            Preconditions.checkArgument(
                    PLACE.matcher(text).replaceAll("").matches("[^{}]*"),
                    "The name "
                            + text
                            + " has a brace that does not belong to a place: {n}, {path}");
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

        /** Returns whether places that stand for blocks are followed by a dot or end the name. */
        boolean isOfBlocks() {
            return PLACE.matcher(text)
                    .results()
                    .filter(place -> !Set.of(LETTERS, NUMBER).contains(key(place)))
                    .allMatch(place -> !place.group(3).isEmpty() || place.end() == text.length());
        }

        /** Returns the places. */
        Set<String> places() {
            return new HashSet<>(places);
        }

        /**
         * Compares a name.
         *
         * @return what stands in the places, or {@code null} if it is another name
         */
        @Nullable Map<String, String> match(String name) {
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

        /** Returns the name with these in its places, and this in that of a number that is none. */
        String fill(Map<String, String> places, String none) {
            return PLACE.matcher(text)
                    .replaceAll(
                            place -> {
                                String key = key(place);
                                String value = places.getOrDefault(key, "");
                                if (!value.isEmpty() || key.equals(LETTERS)) {
                                    return Matcher.quoteReplacement(value + place.group(3));
                                }
                                return key.equals(NUMBER) ? none + place.group(3) : "";
                            });
        }

        @Override
        public String toString() {
            return text;
        }
    }

    /**
     * Parts whose rows lie one below the other, such as queries, keys and values in one weight.
     *
     * @param lengths the number of rows of each part
     */
    record StackedRows(long... lengths) {

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
            return start(lengths.length);
        }

        /** Returns where a part begins. */
        long start(int part) {
            return Arrays.stream(lengths, 0, part).sum();
        }

        /** Returns of which parts some rows of the stack are, in their order. */
        List<Segment> segments(long from, long to) {
            List<Segment> segments = new ArrayList<>();
            for (int i = 0; i < lengths.length; i++) {
                long start = start(i);
                long first = Math.max(from, start);
                long end = Math.min(to, start + lengths[i]);
                if (first < end) {
                    segments.add(new Segment(i, first - start, end - start));
                }
            }
            return segments;
        }
    }
}
