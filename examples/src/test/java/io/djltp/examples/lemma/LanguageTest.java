package io.djltp.examples.lemma;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;

public class LanguageTest {

    @Test
    public void listKeepsItsOrder() {
        Assert.assertEquals(
                Language.parse("ru,de,pl"), List.of(Language.RU, Language.DE, Language.PL));
    }

    @Test
    public void caseAndBlanksDoNotMatterAndRepeatsCountOnce() {
        Assert.assertEquals(Language.parse(" PL, uk ,pl"), List.of(Language.PL, Language.UK));
    }

    @DataProvider
    public Object[][] badLists() {
        return new Object[][] {
            {"de,xx", "'xx'"}, {"", "''"}, {"de,", "''"}, {"german", "'german'"}
        };
    }

    @Test(dataProvider = "badLists")
    public void unknownCodeIsNamedWithTheKnownOnes(String codes, String named) {
        IllegalArgumentException e =
                Assert.expectThrows(IllegalArgumentException.class, () -> Language.parse(codes));
        Assert.assertTrue(e.getMessage().contains(named), e.getMessage());
        Assert.assertTrue(e.getMessage().contains("de, en, pl, uk, ru"), e.getMessage());
    }

    @Test
    public void everyDictionaryIsOnTheClassPath() {
        for (Language language : Language.values()) {
            Assert.assertNotNull(
                    Language.class.getClassLoader().getResource(language.resource()),
                    language.displayName());
        }
    }
}
