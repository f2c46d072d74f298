/** The server, tested by clients of others and by none. */
package io.djltp.llm.serve;
