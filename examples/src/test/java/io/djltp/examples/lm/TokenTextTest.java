package io.djltp.examples.lm;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import com.google.gson.JsonObject;

import io.djltp.examples.lm.TokenText.ExampleSentences;

import org.testng.annotations.Test;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;

/** The text is real English, and what is held out is not trained on. */
public class TokenTextTest {

    @Test
    public void sentencesAreEnglish() throws IOException {
        List<String> sentences = ExampleSentences.read();
        assertTrue(sentences.size() > 10_000, "" + sentences.size());
        assertTrue(sentences.contains("The sad story made my heart ache."));
        assertTrue(sentences.contains("Why do I need help?"));
        // of a pair of a wrong and a right sentence, the right one
        assertTrue(!sentences.contains("Have you ever see a fish?"));
        assertEquals(sentences.stream().distinct().count(), sentences.size());
    }

    @Test
    public void partsOfTheText() throws IOException {
        try (TokenText text = TokenText.read(700)) {
            assertEquals(text.vocabulary(), 700);
            int all = text.training().length + text.heldOut().length;
            assertTrue(all > 200_000, "" + all);
            assertEquals((double) text.heldOut().length / all, 0.05, 0.01);
            assertTrue(text.charactersPerToken() > 2, "" + text.charactersPerToken());
            String known = "The sad story, isn't it? \u00e9\u4e2d 12";
            long[] ids = text.encode(known);
            assertEquals(ids[0], text.end());
            assertTrue(ids.length < known.length());
            assertEquals(text.decode(ids), "\n" + known);
            List<String> training = List.of(text.decode(longs(text.training())).split("\n"));
            String[] heldOut = text.decode(longs(text.heldOut())).split("\n");
            assertTrue(heldOut.length > 600, "" + heldOut.length);
            assertTrue(Arrays.stream(heldOut).skip(1).noneMatch(training::contains));
        }
    }

    /** With no merges a token is a byte; merges make the text shorter, in the order of training. */
    @Test
    public void mergesAreOfTheMostFrequentPairs() throws IOException {
        List<String> sentences = List.of("abab abab cd", "abab");
        JsonObject model = BytePairs.train(sentences, 300).getAsJsonObject("model");
        assertEquals(model.getAsJsonArray("merges").get(0).getAsString(), "a b");
        assertEquals(model.getAsJsonArray("merges").get(1).getAsString(), "ab ab");
        assertTrue(model.getAsJsonObject("vocab").size() < 300); // nothing comes twice any more
        try (TokenText bytes = TokenText.read(BytePairs.LEAST)) {
            assertEquals(bytes.encode("It was.").length, 8);
        }
    }

    private static long[] longs(int... ids) {
        return Arrays.stream(ids).asLongStream().toArray();
    }
}
