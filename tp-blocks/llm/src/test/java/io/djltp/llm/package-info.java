/** Tests of language models. */
package io.djltp.llm;
