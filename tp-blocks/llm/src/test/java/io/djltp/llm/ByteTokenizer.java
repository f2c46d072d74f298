package io.djltp.llm;

import com.google.gson.Gson;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A byte-level BPE as tokenizer.json: 256 bytes, some merges, and an end of text. */
public final class ByteTokenizer {

    /** Its number of ids. */
    static final int SIZE = 263;

    /** The id of the end of a text. */
    static final int END = 262;

    private ByteTokenizer() {}

    /** Returns GPT-2's letters of the 256 bytes. */
    static List<String> letters() {
        List<String> letters = new ArrayList<>();
        int next = 256;
        for (int b = 0; b < 256; b++) {
            boolean printable = b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE;
            letters.add(Character.toString(printable ? b : next++));
        }
        return letters;
    }

    public static void write(Path folder) throws IOException {
        Map<String, Integer> vocabulary = new LinkedHashMap<>();
        letters().forEach(letter -> vocabulary.put(letter, vocabulary.size()));
        List<List<String>> merges = new ArrayList<>();
        String space = "\u0120";
        for (String merge : new String[] {"h e", "l l", "he ll", "hell o", space + " hello"}) {
            merges.add(List.of(merge.split(" ")));
            vocabulary.put(merge.replace(" ", ""), vocabulary.size());
        }
        merges.add(List.of("\u00c3", "\u00bc")); // the bytes of u with two dots
        vocabulary.put("\u00c3\u00bc", vocabulary.size());
        Map<String, Object> bytes = new LinkedHashMap<>();
        bytes.put("type", "ByteLevel");
        bytes.put("add_prefix_space", false);
        bytes.put("trim_offsets", true);
        bytes.put("use_regex", true);
        Map<String, Object> end = new LinkedHashMap<>();
        end.put("id", END);
        end.put("content", "<|end|>");
        end.put("special", true);
        for (String flag : List.of("single_word", "lstrip", "rstrip", "normalized")) {
            end.put(flag, false);
        }
        Map<String, Object> all = new LinkedHashMap<>();
        all.put("version", "1.0");
        all.put("added_tokens", List.of(end));
        all.put("pre_tokenizer", bytes);
        all.put("decoder", bytes);
        all.put("model", Map.of("type", "BPE", "vocab", vocabulary, "merges", merges));
        Files.writeString(folder.resolve("tokenizer.json"), new Gson().toJson(all));
    }
}
