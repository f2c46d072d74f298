package io.djltp.llm;

import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;

import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;

public class TextStreamTest {

    private final Path folder = TestFolder.create();
    private HuggingFaceTokenizer tokenizer;

    @BeforeClass
    public void open() throws Exception {
        ByteTokenizer.write(folder);
        tokenizer = HuggingFaceTokenizer.newInstance(folder.resolve("tokenizer.json"));
    }

    @AfterClass(alwaysRun = true)
    public void close() {
        tokenizer.close();
    }

    @DataProvider
    public static Object[][] texts() {
        return new Object[][] {
            {"hello hello"},
            {"f\u00fcr \u4e16\u754c, \ud83d\ude00 and \ud83d\udc69\u200d\ud83d\udc67"},
            {" leading and trailing  "},
            {""},
        };
    }

    /** Byte by byte, no piece has half a character, and together they are the text. */
    @Test(dataProvider = "texts")
    public void charactersAreWhole(String text) {
        TextStream stream = new TextStream(tokenizer, List.of());
        StringBuilder all = new StringBuilder();
        for (byte each : text.getBytes(StandardCharsets.UTF_8)) {
            String piece = stream.add(each & 0xff);
            Assert.assertFalse(piece.contains("\uFFFD"), piece);
            Assert.assertTrue(piece.isEmpty() || !Character.isLowSurrogate(piece.charAt(0)), piece);
            all.append(piece);
        }
        all.append(stream.finish());
        Assert.assertEquals(all.toString(), text);
        Assert.assertEquals(stream.getText(), text);
    }

    /** The first stop string ends the text; what may begin one is held back. */
    @Test
    public void stopStringsAreNoPartOfTheText() {
        TextStream stream = new TextStream(tokenizer, List.of("END", "stop", "\n\n"));
        StringBuilder all = new StringBuilder();
        String text = "an EN or a sto\nsto\nENstop here END";
        for (byte each : text.getBytes(StandardCharsets.UTF_8)) {
            String piece = stream.add(each & 0xff);
            all.append(piece);
            if (stream.isStopped()) {
                break;
            }
        }
        all.append(stream.finish());
        Assert.assertTrue(stream.isStopped());
        Assert.assertEquals(all.toString(), "an EN or a sto\nsto\nEN");
    }

    /** What was held back comes at the end, but not half a character. */
    @Test
    public void theEndGivesWhatIsLeft() {
        TextStream stream = new TextStream(tokenizer, List.of("xyz"));
        Assert.assertEquals(stream.add('a'), "a");
        Assert.assertEquals(stream.add('x'), "");
        Assert.assertEquals(stream.add(0xC3), "");
        Assert.assertEquals(stream.finish(), "x");
        Assert.assertFalse(stream.isStopped());
    }

    @Test
    public void withoutTokenizerThereIsNoText() {
        TextStream stream = new TextStream(null, List.of());
        Assert.assertEquals(stream.add(3), "");
        Assert.assertEquals(stream.finish(), "");
    }

    private static final String BYTES =
            "{'type': 'ByteLevel', 'add_prefix_space': false, 'trim_offsets': true, 'use_regex': ";
    private static final String METASPACE =
            "{'type': 'Sequence', 'decoders': [{'type': 'Replace', 'pattern': {'String': '\u2581'},"
                    + " 'content': ' '}, {'type': 'ByteFallback'}, {'type': 'Fuse'},"
                    + " {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]}";

    /** The parts of a tokenizer.json of each kind, but for its vocabulary. */
    @DataProvider
    public static Object[][] kinds() {
        String split =
                "'(?i:\\'s|\\'t)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}|"
                        + " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s+(?!\\\\S)|\\\\s+'";
        return new Object[][] {
            {"GPT-2", "'pre_tokenizer': " + BYTES + "true}, 'decoder': " + BYTES + "true}"},
            {
                "Llama 3, Qwen",
                "'normalizer': {'type': 'NFC'}, 'pre_tokenizer': {'type': 'Sequence',"
                        + " 'pretokenizers': [{'type': 'Split', 'pattern': {'Regex': "
                        + split
                        + "}, 'behavior': 'Isolated', 'invert': false}, "
                        + BYTES
                        + "false}]}, 'decoder': "
                        + BYTES
                        + "true}"
            },
            {
                "Llama 2",
                "'normalizer': {'type': 'Sequence', 'normalizers': [{'type': 'Prepend',"
                        + " 'prepend': '\u2581'}, {'type': 'Replace', 'pattern': {'String': ' '},"
                        + " 'content': '\u2581'}]}, 'decoder': "
                        + METASPACE
            },
            {
                "Mistral v0.3",
                "'pre_tokenizer': {'type': 'Metaspace', 'replacement': '\u2581',"
                        + " 'prepend_scheme': 'first', 'split': false}, 'decoder': "
                        + METASPACE
            },
            {
                "BERT",
                "'normalizer': {'type': 'BertNormalizer', 'clean_text': true,"
                        + " 'handle_chinese_chars': true, 'strip_accents': null, 'lowercase': true},"
                        + " 'pre_tokenizer': {'type': 'BertPreTokenizer'}, 'decoder': {'type':"
                        + " 'WordPiece', 'prefix': '##', 'cleanup': true}"
            },
        };
    }

    private static JsonObject model(String kind) {
        JsonObject vocabulary = new JsonObject();
        List<String> words = new ArrayList<>();
        String merges = "h e|l l|he ll|hell o";
        String type = "'type': 'BPE', 'merges': [";
        if (kind.equals("BERT")) {
            type =
                    "'type': 'WordPiece', 'unk_token': '<unk>', 'max_input_chars_per_word': 99,"
                            + " 'continuing_subword_prefix': '##'";
            words.add("<unk>");
            "abcdefgh.,!?'0123".chars().forEach(c -> words.add(Character.toString(c)));
            "abcdefghijklmnopqrstuvwxyz0123".chars().forEach(c -> words.add("##" + (char) c));
            words.addAll(List.of("hello", "##llo", "don", "ll", "s", "t"));
        } else if (kind.equals("Llama 2") || kind.startsWith("Mistral")) {
            type = "'unk_token': '<unk>', 'fuse_unk': true, 'byte_fallback': true, " + type;
            words.addAll(List.of("<unk>", "<s>", "</s>"));
            IntStream.range(0, 256).forEach(b -> words.add("<0x%02X>".formatted(b)));
            "\u2581helo wrd.\u00fc\u4e16".chars().forEach(c -> words.add((char) c + ""));
            merges += "|\u2581 hello|\u2581 \u2581|\u2581\u2581 \u2581\u2581";
        } else {
            words.addAll(ByteTokenizer.letters());
            merges += "|\u0120 hello|\u0120 \u0120|\u00c3 \u00bc|\u00e4 \u00b8|\u00f0 \u0141";
        }
        if (!kind.equals("BERT")) {
            for (String merge : merges.split("\\|")) {
                words.add(merge.replace(" ", ""));
            }
            type += "'" + String.join("', '", merges.split("\\|")) + "']";
        }
        words.stream().distinct().forEach(w -> vocabulary.addProperty(w, vocabulary.size()));
        JsonObject model = RandomFolder.config("{" + type + "}");
        model.add("vocab", vocabulary);
        return model;
    }

    /** The pieces are together what all ids are, for tokenizers of each kind, and random texts. */
    @Test(dataProvider = "kinds")
    public void piecesAreTheWholeText(String kind, String parts) throws Exception {
        JsonObject json = new Gson().fromJson("{" + parts + "}", JsonObject.class);
        json.addProperty("version", "1.0");
        json.add("model", model(kind));
        json.add("added_tokens", new JsonArray());
        Path file = folder.resolve("kind.json");
        Files.writeString(file, json.toString());
        int ids = json.getAsJsonObject("model").getAsJsonObject("vocab").size();
        int most = TokenizerIds.mostBytes(file, ids); // bytes of a token
        Assert.assertEquals(most > 0, !kind.equals("BERT"), kind);
        String[] parcels =
                ("hello| |  |\n|.|w|\u00fc|e\u0301|\u4e16\u754c|\ud83d\ude00|don't| , |0123|\t|l|    "
                                + "|\ud83d\udc69\u200d\ud83d\udc67|\u05d0\u05d1")
                        .split("\\|");
        Random random = new Random(5);
        try (HuggingFaceTokenizer own = HuggingFaceTokenizer.newInstance(file)) {
            for (int i = 0; i < 300; i++) {
                StringBuilder text = new StringBuilder();
                for (int k = random.nextInt(12); k >= 0; k--) {
                    text.append(parcels[random.nextInt(parcels.length)]);
                }
                long[] tokens = own.encode(text.toString(), false, false).getIds();
                int bytes = text.toString().getBytes(StandardCharsets.UTF_8).length;
                Assert.assertTrue(most == 0 || bytes <= tokens.length * most, kind + ": " + text);
                TextStream stream = new TextStream(own, List.of());
                StringBuilder all = new StringBuilder();
                for (long id : tokens) {
                    String piece = stream.add((int) id);
                    Assert.assertFalse(piece.contains("\uFFFD"), kind + ": " + text);
                    all.append(piece);
                }
                all.append(stream.finish());
                Assert.assertEquals(all.toString(), own.decode(tokens, true), kind + ": " + text);
                if (kind.equals("GPT-2") || kind.equals("Llama 2")) {
                    Assert.assertEquals(all.toString(), text.toString());
                }
            }
        }
    }
}
