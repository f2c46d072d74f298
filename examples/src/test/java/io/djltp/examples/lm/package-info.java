/** Tests of the language model. */
package io.djltp.examples.lm;
