package io.djltp.examples.lm;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Makes a tokenizer of pairs of bytes from sentences, as that of GPT-2 was made: the tokens are the
 * 256 bytes and, one after another, the two neighbouring tokens within a word that come together
 * most often. Token 0 is the end of a text.
 */
final class BytePairs {

    static final String END = "<|endoftext|>";

    /** The file without what is trained. */
    private static final String TOKENIZER =
            """
            {
              "version": "1.0",
              "added_tokens": [
                {"id": 0, "content": "END", "single_word": false, "lstrip": false,
                 "rstrip": false, "normalized": false, "special": true}
              ],
              "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false,
                                "trim_offsets": true, "use_regex": true},
              "post_processor": {
                "type": "TemplateProcessing",
                "single": [
                  {"SpecialToken": {"id": "END", "type_id": 0}},
                  {"Sequence": {"id": "A", "type_id": 0}}
                ],
                "pair": [
                  {"SpecialToken": {"id": "END", "type_id": 0}},
                  {"Sequence": {"id": "A", "type_id": 0}},
                  {"SpecialToken": {"id": "END", "type_id": 1}},
                  {"Sequence": {"id": "B", "type_id": 1}}
                ],
                "special_tokens": {"END": {"id": "END", "ids": [0], "tokens": ["END"]}}
              },
              "decoder": {"type": "ByteLevel", "add_prefix_space": false,
                          "trim_offsets": true, "use_regex": true},
              "model": {"type": "BPE", "fuse_unk": false, "byte_fallback": false}
            }
            """
                    .replace("END", END);

    /** Ids that every tokenizer has: the end and the bytes. */
    static final int LEAST = 257;

    /** Words, with a blank before them, as GPT-2 divides a text. */
    private static final Pattern WORD =
            Pattern.compile(
                    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
                            + "|\\s+");

    private final List<String> tokens = new ArrayList<>();
    private final List<int[]> merges = new ArrayList<>();
    private final List<int[]> words = new ArrayList<>(); // as ids of tokens, shorter and shorter
    private final List<Integer> counts = new ArrayList<>(); // of the words
    private final Map<Long, Integer> pairs = new HashMap<>(); // how often they come
    private final Map<Long, Set<Integer>> places = new HashMap<>(); // the words that have them

    private BytePairs(List<String> sentences) {
        tokens.add(END);
        int[] ids = new int[256];
        String letters = letters();
        for (int i = 0; i < ids.length; i++) {
            ids[i] = tokens.size();
            tokens.add(letters.substring(i, i + 1));
        }
        Map<String, Integer> found = new LinkedHashMap<>();
        for (String sentence : sentences) {
            Matcher matcher = WORD.matcher(sentence);
            while (matcher.find()) {
                found.merge(matcher.group(), 1, Integer::sum);
            }
        }
        found.forEach(
                (word, count) -> {
                    byte[] bytes = word.getBytes(StandardCharsets.UTF_8);
                    int[] symbols = new int[bytes.length];
                    for (int i = 0; i < bytes.length; i++) {
                        symbols[i] = ids[bytes[i] & 255];
                    }
                    words.add(symbols);
                    counts.add(count);
                });
        for (int i = 0; i < words.size(); i++) {
            note(i, 1);
        }
    }

    /** Returns the letter that stands for each byte: itself, or where that is blank another. */
    private static String letters() {
        StringBuilder letters = new StringBuilder();
        int next = 256;
        for (int i = 0; i < 256; i++) {
            boolean printed = i >= '!' && i <= '~' || i >= 0xA1 && i <= 0xFF && i != 0xAD;
            letters.append((char) (printed ? i : next++));
        }
        return letters.toString();
    }

    private static long pair(int first, int second) {
        return (long) first << 32 | second;
    }

    /** Adds the pairs of a word to the counts, or takes them away. */
    private void note(int number, int sign) {
        int[] word = words.get(number);
        for (int i = 1; i < word.length; i++) {
            long pair = pair(word[i - 1], word[i]);
            pairs.merge(pair, sign * counts.get(number), Integer::sum);
            places.computeIfAbsent(pair, each -> new HashSet<>()).add(number);
        }
    }

    /** Makes one token of the pair that comes most often; of several that of the lowest ids. */
    private boolean merge() {
        long best = -1;
        int most = 1; // once is not worth a token
        for (Map.Entry<Long, Integer> each : pairs.entrySet()) {
            boolean before = each.getValue() == most && each.getKey() < best;
            if (each.getValue() > most || before && most > 1) {
                best = each.getKey();
                most = each.getValue();
            }
        }
        if (best < 0) {
            return false;
        }
        int first = (int) (best >> 32);
        int second = (int) best;
        int id = tokens.size();
        tokens.add(tokens.get(first) + tokens.get(second));
        merges.add(new int[] {first, second});
        for (int number : List.copyOf(places.get(best))) {
            note(number, -1);
            words.set(number, merged(words.get(number), first, second, id));
            note(number, 1);
        }
        pairs.remove(best);
        places.remove(best);
        return true;
    }

    private static int[] merged(int[] word, int first, int second, int id) {
        int[] merged = new int[word.length];
        int length = 0;
        for (int i = 0; i < word.length; i++) {
            boolean pair = i + 1 < word.length && word[i] == first && word[i + 1] == second;
            merged[length++] = pair ? id : word[i];
            i += pair ? 1 : 0;
        }
        return Arrays.copyOf(merged, length);
    }

    /**
     * Returns a tokenizer as Hugging Face's {@code tokenizer.json} has it. A text that it encodes
     * begins with the token that ends one.
     *
     * @param sentences the sentences
     * @param vocabulary the number of tokens, {@link #LEAST} or more; there are fewer if the
     *     sentences have no more pairs that come twice
     */
    static JsonObject train(List<String> sentences, int vocabulary) {
        BytePairs trained = new BytePairs(sentences);
        while (trained.tokens.size() < vocabulary && trained.merge()) {}
        return trained.json();
    }

    private JsonObject json() {
        JsonObject vocabulary = new JsonObject();
        for (int i = 0; i < tokens.size(); i++) {
            vocabulary.addProperty(tokens.get(i), i);
        }
        JsonArray pairsInOrder = new JsonArray();
        for (int[] each : merges) {
            pairsInOrder.add(tokens.get(each[0]) + " " + tokens.get(each[1]));
        }
        JsonObject tokenizer = JsonParser.parseString(TOKENIZER).getAsJsonObject();
        JsonObject model = tokenizer.getAsJsonObject("model");
        model.add("vocab", vocabulary);
        model.add("merges", pairsInOrder);
        return tokenizer;
    }
}
