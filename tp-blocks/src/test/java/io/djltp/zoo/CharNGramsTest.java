package io.djltp.zoo;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import java.util.stream.Collectors;

public class CharNGramsTest {

    private static final int ROWS = 1 << 16;

    @Test
    public void wordHasItsBeginningsTwiceAndItsNGramsWithMarks() {
        CharNGrams nGrams = new CharNGrams(ROWS, 20);
        // abcd: 2 beginnings; ^abcd$ is 6 characters long: 2 n-grams of 5, then 3, 4 and 5
        int[] rows = nGrams.rowsOf("abcd");
        Assert.assertEquals(Arrays.stream(rows).filter(row -> row > 0).count(), 2 * 2 + 14);
        Assert.assertEquals(Arrays.copyOfRange(rows, 18, 20), new int[2]);
        Assert.assertEquals(rows[0], rows[1]);
        Assert.assertEquals(rows[2], rows[3]);
        Assert.assertNotEquals(rows[0], rows[2]);
        Assert.assertEquals(nGrams.rowsOf("abcx")[0], rows[0]);
        // ab is its own and only beginning
        Assert.assertEquals(
                Arrays.stream(nGrams.rowsOf("ab")).filter(row -> row > 0).count(), 2 + 6);
    }

    @Test
    public void relatedFormsShareRowsAndOthersDoNot() {
        CharNGrams nGrams = new CharNGrams(ROWS);
        Assert.assertTrue(shared(nGrams, "gesungen", "gesungenes") >= 20);
        Assert.assertEquals(shared(nGrams, "gesungen", "Kraut"), 0);
    }

    @Test
    public void letterCaseAndPlaceInTheWordMatter() {
        CharNGrams nGrams = new CharNGrams(ROWS);
        Assert.assertTrue(shared(nGrams, "Arm", "arm") < 4);
        Assert.assertNotEquals(nGrams.rowsOf("ab")[1], nGrams.rowsOf("ba")[1]);
    }

    @Test
    public void rowsAreTheSameInEveryRun() {
        // a saved model is of use only as long as these stay
        CharNGrams nGrams = new CharNGrams(ROWS, 8);
        Assert.assertEquals(
                nGrams.rowsOf("Öl"),
                new int[] {28808, 28808, 41155, 8885, 17099, 14387, 59089, 9525});
    }

    @DataProvider
    public Object[][] words() {
        return new Object[][] {
            {""}, {"a"}, {"Straße"}, {"їжа"}, {"x".repeat(500)}, {"\ud83d\ude00"}
        };
    }

    @Test(dataProvider = "words")
    public void rowsAreInRangeAndNoMoreThanTheLimit(String word) {
        CharNGrams nGrams = new CharNGrams(11, 20);
        int[] out = new int[24];
        Arrays.fill(out, -1);
        int count = nGrams.fill(word, out, 2);
        Assert.assertTrue(count >= 1 && count <= 20);
        Assert.assertEquals(Arrays.copyOf(out, 2), new int[] {-1, -1});
        Assert.assertEquals(Arrays.copyOfRange(out, 22, 24), new int[] {-1, -1});
        for (int i = 0; i < 20; i++) {
            int row = out[2 + i];
            Assert.assertTrue(i < count ? row >= 1 && row < 11 : row == 0, row + " at " + i);
        }
    }

    private static int shared(CharNGrams nGrams, String a, String b) {
        Set<Integer> rows = rows(nGrams, a);
        rows.retainAll(rows(nGrams, b));
        return rows.size();
    }

    private static Set<Integer> rows(CharNGrams nGrams, String word) {
        return Arrays.stream(nGrams.rowsOf(word))
                .filter(row -> row > 0)
                .boxed()
                .collect(Collectors.toCollection(HashSet::new));
    }
}
