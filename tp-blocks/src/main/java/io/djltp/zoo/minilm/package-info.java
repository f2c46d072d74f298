/** The sentence embeddings of all-MiniLM-L6-v2. */
package io.djltp.zoo.minilm;
