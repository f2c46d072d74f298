/** Contains the tests of the lemmatiser's data and network. */
package io.djltp.examples.lemma;
