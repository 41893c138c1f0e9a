// What the extension of DuckDB uses of DuckDB, so that it compiles without DuckDB's headers.
//
// DuckDB hands an extension a table of its functions. The first 357 have been in this order since v1.2.0, and a later
// version only adds to the end, so an extension for v1.2.0 loads in all later ones ("C_STRUCT" in its footer). The numbers
// are places in the table.
#pragma once
#include <cstdint>

namespace duckdb {

struct Object;  // whatever a pointer of DuckDB points to
using Row = uint64_t;
using Call = void (*)(Object* info, Object* chunk, Object* output);
enum State { SUCCESS = 0 };
constexpr int VARCHAR = 17;

// A string in a vector. Up to 12 bytes are in it, and what is longer is elsewhere.
struct String {
  uint32_t length;
  char start[4];
  const char* elsewhere;

  const char* data() const { return length <= 12 ? start : elsewhere; }
};

struct Access {
  void (*set_error)(Object* info, const char* message);
  Object** (*database)(Object* info);
  void* const* (*functions)(Object* info, const char* version);
};

// A copy, since DuckDB's own lives while the extension is loaded.
inline void* table[226];

template <int place, class Result, class... Arguments>
struct Imported {
  Result operator()(Arguments... arguments) const {
    return reinterpret_cast<Result (*)(Arguments...)>(table[place])(arguments...);
  }
};

inline constexpr Imported<3, State, Object*, Object**> connect;
inline constexpr Imported<6, void, Object**> disconnect;
inline constexpr Imported<156, Object*, int> create_logical_type;
inline constexpr Imported<184, void, Object**> destroy_logical_type;
inline constexpr Imported<190, Object*, Object*, Row> chunk_vector;
inline constexpr Imported<191, Row, Object*> chunk_size;
inline constexpr Imported<194, void*, Object*> vector_data;
inline constexpr Imported<195, uint64_t*, Object*> vector_validity;  // a bit per row; null if every row is valid
inline constexpr Imported<196, void, Object*> make_validity_writable;
inline constexpr Imported<198, void, Object*, Row, const char*, Row> assign_string;
inline constexpr Imported<209, Object*> create_function;
inline constexpr Imported<210, void, Object**> destroy_function;
inline constexpr Imported<211, void, Object*, const char*> set_name;
inline constexpr Imported<215, void, Object*, Object*> add_parameter;
inline constexpr Imported<216, void, Object*, Object*> set_return_type;
inline constexpr Imported<217, void, Object*, void*, void (*)(void*)> set_extra_info;
inline constexpr Imported<218, void, Object*, Call> set_function;
inline constexpr Imported<220, void*, Object*> extra_info;
inline constexpr Imported<221, void, Object*, const char*> set_error;
inline constexpr Imported<222, Object*, const char*> create_function_set;
inline constexpr Imported<223, void, Object**> destroy_function_set;
inline constexpr Imported<224, State, Object*, Object*> add_to_set;
inline constexpr Imported<225, State, Object*, Object*> register_set;

}  // namespace duckdb
