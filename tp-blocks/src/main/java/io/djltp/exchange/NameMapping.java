package io.djltp.exchange;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

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

    private final List<NameRule> rules;
    private final List<NamePattern> ignored;

    private NameMapping(List<NameRule> rules, List<NamePattern> ignored) {
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
        List<NameRule> rules = new ArrayList<>();
        List<NamePattern> ignored = new ArrayList<>();
        for (String line : table.split("\n")) {
            String text = line.replaceFirst("#.*", "").trim();
            if (text.startsWith("ignore ")) {
                ignored.add(NameRule.name(text, text.substring("ignore ".length()).trim()));
            } else if (!text.isEmpty()) {
                rules.add(NameRule.parse(text));
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
        List<NameRule> all = new ArrayList<>(first.rules);
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
        Set<NameRule> used = new HashSet<>();
        for (String path : paths) {
            RuleMatch.of(this, path, tree).forEach(match -> used.add(match.rule()));
        }
        return rules.stream().filter(rule -> !used.contains(rule)).map(NameRule::toString).toList();
    }

    /** Returns the rules, the first one first. */
    List<NameRule> rules() {
        return rules;
    }

    /** Returns whether a tensor needs no parameter. */
    boolean isIgnored(String tensor) {
        return ignored.stream().anyMatch(pattern -> pattern.match(tensor) != null);
    }
}
